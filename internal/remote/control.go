package remote

import (
	"context"
	"maps"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// seats are how many sessions may be open at a master's node at once, of all of
// dsbuild. A node has ten (MaxSessions), for the master's owner as well.
const seats = 8

// masters are the OpenSSH processes on this machine that are ridden on.
type masters struct {
	mu    sync.Mutex
	taken map[string]int // seats, by the master's socket
}

func (m *masters) take(path string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.taken[path] >= seats {
		return false
	}
	m.taken[path]++
	return true
}

func (m *masters) free(path string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.taken[path]--; m.taken[path] == 0 {
		delete(m.taken, path)
	}
}

// rideNative opens a connection that rides on one which an OpenSSH on this machine has
// to t (ControlMaster), or returns nil: then there is none, or it no longer
// answers. That OpenSSH has checked who the node is, and logged in: so this is
// the way where a login needs what dsbuild cannot do, as Kerberos, or a code for
// each node. It is as safe as that OpenSSH was told to be; t.KnownHosts has no say.
func (d *SSH) rideNative(ctx context.Context, t Target) *sshConn {
	for _, path := range t.ControlPaths {
		if c := d.rideOn(ctx, t, path); c != nil {
			return c
		}
	}
	return nil
}

func (d *SSH) rideOn(ctx context.Context, t Target, path string) *sshConn {
	// Another user's could be anybody's.
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != os.ModeSocket || !ours(info) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, rideLimit)
	defer cancel()
	nc, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil // a stale one
	}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	alive := newAliveConn(nc)
	cc, chans, reqs, err := ssh.NewControlClientConn(alive)
	if err != nil {
		nc.Close()
		return nil
	}
	g := &guest{Conn: cc, masters: d.masters, path: path, open: map[ssh.Channel]bool{}}
	client := ssh.NewClient(g, chans, reqs)
	// The master answers for itself. Whether the node does, and has room for
	// another session, shows only when one is opened.
	if err := g.ask(); err != nil || !stop() {
		client.Close() //nolint:errcheck // it is of no use
		return nil
	}
	c := newNative(t, client, alive, g.ask, d.opt)
	c.forward = forwardBy(path)
	c.link.(*nativeLink).close = func() { client.Close() }
	return c
}

// guest is a connection that rides on a master's. A master of OpenSSH (9.2 at
// least) ends, for everybody, when a guest leaves that has a channel open, has
// asked for one and got no answer, or was refused one. So a guest asks for few,
// stays until all is closed, and leaves forwarding, where refusals are common,
// to forwardBy.
type guest struct {
	ssh.Conn
	masters *masters
	path    string

	mu      sync.Mutex
	open    map[ssh.Channel]bool
	asking  int // for channels
	leaving bool
}

// OpenChannel implements ssh.Conn.
func (g *guest) OpenChannel(name string, data []byte) (ssh.Channel, <-chan *ssh.Request, error) {
	if !g.begin() {
		return nil, nil, net.ErrClosed
	}
	if !g.masters.take(g.path) {
		g.end(nil)
		return nil, nil, &ssh.OpenChannelError{Reason: ssh.ResourceShortage, Message: "an OpenSSH on this machine, on whose connection this one rides, needs room for others"}
	}
	ch, reqs, err := g.Conn.OpenChannel(name, data)
	g.end(ch)
	if err != nil {
		g.masters.free(g.path)
		return nil, nil, err
	}
	passed := make(chan *ssh.Request)
	go func() {
		defer close(passed)
		for r := range reqs { // until the channel is closed
			passed <- r
		}
		g.masters.free(g.path)
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.open, ch)
	}()
	return ch, passed, nil
}

// muxError is what an OpenSSH says when it cannot connect to an address.
type muxError struct{ why string }

func (e *muxError) Error() string { return e.why }

// begin reports whether a channel may be asked for.
func (g *guest) begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.leaving {
		g.asking++
	}
	return !g.leaving
}

// end is the answer; ch is nil where it was no.
func (g *guest) end(ch ssh.Channel) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asking--
	if ch != nil {
		g.open[ch] = true
	}
}

// leaveLimit is how long a guest keeps others waiting until all is closed.
const leaveLimit = 3 * time.Second

// Close implements ssh.Conn. A program that was abandoned on the node and does
// not end keeps the connection, with nobody waiting for it.
func (g *guest) Close() error {
	for ch := range g.leave() {
		ch.Close() //nolint:errcheck // the node may have done so
	}
	left := make(chan error, 1)
	go func() {
		for !g.alone() {
			time.Sleep(5 * time.Millisecond)
		}
		left <- g.Conn.Close()
	}()
	select {
	case err := <-left:
		return err
	case <-time.After(leaveLimit):
		return nil
	}
}

// leave asks for nothing more, and returns what is open.
func (g *guest) leave() map[ssh.Channel]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leaving = true
	return maps.Clone(g.open)
}

// alone reports whether nothing is open, or asked for.
func (g *guest) alone() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asking == 0 && len(g.open) == 0
}

// ask has the node answer: a request of a session that is open, or a session. A
// master passes on nothing that is not about a channel.
func (g *guest) ask() error {
	g.mu.Lock()
	var some ssh.Channel
	for ch := range g.open {
		some = ch
		break
	}
	g.mu.Unlock()
	if some != nil {
		_, err := some.SendRequest("keepalive@openssh.com", true, nil)
		return err
	}
	ch, reqs, err := g.OpenChannel("session", nil)
	if err != nil {
		return err
	}
	if err := ch.Close(); err != nil {
		return err
	}
	ssh.DiscardRequests(reqs) // until the node has closed it, too
	return nil
}
