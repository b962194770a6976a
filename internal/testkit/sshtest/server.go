//go:build unix

// Package sshtest is an SSH server inside a test process that misbehaves on demand. It cuts
// connections, stalls, shows another host key or runs out of space. Otherwise it works with the
// real file system and real programs.
package sshtest

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/dsbuild/dsbuild/internal/remote"
)

// Options select the faults of a server.
type Options struct {
	// Address to listen on; "" means 127.0.0.1. All of 127.0.0.0/8 will do on Linux.
	Address string
	// Port to listen on; 0 means any.
	Port int
	// Key is the public key that the server accepts; nil means a fresh key whose private half is in
	// Server.IdentityFile.
	Key ssh.PublicKey
	// Name is the server's name in messages; "" means "node".
	Name string
	// Home is the folder where commands start, and their HOME; "" means a fresh folder.
	Home string
	// Env are further variables of every command, as K=V.
	Env []string
	// Shell is the program that runs a command, which it gets as its last argument; nil means
	// /bin/sh -c.
	Shell []string
	// Exec, if set, answers commands instead of a shell.
	Exec func(command string, stdin io.Reader, stdout, stderr io.Writer) int

	// StallOnAccept makes the server accept TCP connections and send nothing.
	StallOnAccept bool
	// StallAfter, if above 0, makes each connection fall silent, but stay open, after that many
	// received bytes.
	StallAfter int64
	// CutAfter, if above 0, closes each connection after that many received bytes.
	CutAfter int64
	// Cuts limits the number of connections that CutAfter and StallAfter affect; 0 means all.
	Cuts int
	// WrongKey makes the server show a host key that is not the one in KnownHosts.
	WrongKey bool
	// HostKey is the server's host key; nil means a fresh Ed25519 key.
	HostKey ssh.Signer
	// Algorithms are the algorithms that the server offers; the zero value means those of x/crypto.
	Algorithms ssh.Config
	// Unknown leaves the server out of KnownHosts.
	Unknown bool
	// CutAuths is the number of connections that the server closes during a try of a key.
	CutAuths int
	// NoForward makes the server refuse to be a jump host, as AllowTcpForwarding no does.
	NoForward bool
	// RefuseAuth makes the server refuse every key.
	RefuseAuth bool
	// Password, if set, is the password that the server accepts instead of a key.
	Password string
	// Ask, if set, is a login by keyboard-interactive instead of a key. With AfterKey it follows a
	// key. Ask asks through challenge, and lets the user in when it returns nil.
	Ask      func(user string, challenge ssh.KeyboardInteractiveChallenge) error
	AfterKey bool
	// Refuse, if set, is the text that the server sends to each connection in place of a version.
	Refuse string
	// Banner is a text that the server sends during the login, as PAM does.
	Banner string
	// MaxSessions, if above 0, limits the open sessions of a connection.
	MaxSessions int64
	// NoSFTP refuses the sftp subsystem.
	NoSFTP bool
	// Greeting is a text that the login shell prints before each program, SFTP too.
	Greeting string
	// NoSpaceAfter, if above 0, is the number of bytes written to files after which the disk is
	// full.
	NoSpaceAfter int64
	// HideFree removes statvfs, so that only a write shows that the disk is full.
	HideFree bool
	// Corrupt flips a bit in every uploaded file.
	Corrupt bool
	// IgnoreEOF keeps an SFTP session open after the client has ended it, until the connection
	// ends.
	IgnoreEOF bool
	// Rate, if above 0, limits the bytes that the server receives over each connection per second.
	Rate int64
	// Reset makes the server break each connection during the handshake, without a close.
	Reset bool
	// Latency delays everything that the server sends.
	Latency time.Duration
}

// Server is a running server. It stops when its test ends.
type Server struct {
	// Address and Port are the server's TCP address.
	Address string
	Port    int
	// User is a login name; the server accepts any.
	User string
	// Home is the home folder of the server's only user.
	Home string
	// IdentityFile is a private key that the server accepts.
	IdentityFile string
	// KnownHosts is a file with the server's host key.
	KnownHosts string
	// HostKey is the server's host key.
	HostKey ssh.PublicKey

	opt         Options
	config      *ssh.ServerConfig
	listener    net.Listener
	running     sync.WaitGroup
	written     atomic.Int64
	connections atomic.Int64
	refused     atomic.Int64
	denied      atomic.Int64
	faults      atomic.Int64
	auths       atomic.Int64
	hushed      atomic.Bool

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	trips Trips
	shut  bool
}

// Start runs a server until the test ends.
func Start(tb testing.TB, opt Options) *Server {
	tb.Helper()
	s, err := Run(tb.TempDir(), opt)
	if err != nil {
		tb.Fatalf("starting an SSH server: %v", err)
	}
	tb.Cleanup(s.Stop)
	return s
}

// Run runs a server until Stop. Its files lie in dir, which must exist.
func Run(dir string, opt Options) (*Server, error) {
	if opt.Address == "" {
		opt.Address = "127.0.0.1"
	}
	if opt.Name == "" {
		opt.Name = "node"
	}
	if opt.Home == "" {
		opt.Home = filepath.Join(dir, "home")
		if err := os.Mkdir(opt.Home, 0o700); err != nil {
			return nil, err
		}
	}
	s := &Server{opt: opt, User: "train", Home: opt.Home, Address: opt.Address, conns: map[net.Conn]struct{}{}}
	var err error
	if s.listener, err = net.Listen("tcp", net.JoinHostPort(opt.Address, strconv.Itoa(opt.Port))); err != nil {
		return nil, err
	}
	s.Port = s.listener.Addr().(*net.TCPAddr).Port
	if err := s.keys(dir); err != nil {
		s.listener.Close()
		return nil, err
	}
	s.running.Add(1)
	go s.accept()
	return s, nil
}

// keys makes the keys of both sides and the client's files.
func (s *Server) keys(dir string) error {
	host, hostPub, _, err := newKey()
	if err != nil {
		return err
	}
	if s.opt.HostKey != nil {
		host, hostPub = s.opt.HostKey, s.opt.HostKey.PublicKey()
	}
	clientPub := s.opt.Key
	if clientPub == nil {
		if clientPub, err = s.identity(dir); err != nil {
			return err
		}
	}
	line := knownhosts.Line([]string{fmt.Sprintf("[%s]:%d", s.Address, s.Port)}, hostPub) + "\n"
	if s.opt.Unknown {
		line = "# empty\n"
	}
	s.KnownHosts = filepath.Join(dir, "known_hosts")
	if err := os.WriteFile(s.KnownHosts, []byte(line), 0o600); err != nil {
		return err
	}
	if s.opt.WrongKey {
		if host, hostPub, _, err = newKey(); err != nil {
			return err
		}
	}
	s.HostKey = hostPub
	s.config = &ssh.ServerConfig{Config: s.opt.Algorithms, PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if s.opt.RefuseAuth || string(key.Marshal()) != string(clientPub.Marshal()) {
			s.refused.Add(1)
			return nil, errors.New("unknown key")
		}
		if s.opt.AfterKey {
			return nil, &ssh.PartialSuccessError{Next: ssh.ServerAuthCallbacks{KeyboardInteractiveCallback: s.ask}}
		}
		return nil, nil
	}}
	if s.opt.Password != "" {
		s.config.PasswordCallback = s.password
	}
	if s.opt.Ask != nil && !s.opt.AfterKey {
		s.config.KeyboardInteractiveCallback = s.ask
	}
	if s.opt.Banner != "" {
		s.config.BannerCallback = func(ssh.ConnMetadata) string { return s.opt.Banner }
	}
	s.config.AddHostKey(host)
	return nil
}

func (s *Server) password(_ ssh.ConnMetadata, typed []byte) (*ssh.Permissions, error) {
	if string(typed) != s.opt.Password {
		s.denied.Add(1)
		return nil, errors.New("wrong password")
	}
	return nil, nil
}

func (s *Server) ask(c ssh.ConnMetadata, challenge ssh.KeyboardInteractiveChallenge) (*ssh.Permissions, error) {
	if err := s.opt.Ask(c.User(), challenge); err != nil {
		s.denied.Add(1)
		return nil, err
	}
	return nil, nil
}

// identity makes the key that the server accepts.
func (s *Server) identity(dir string) (ssh.PublicKey, error) {
	_, pub, pem, err := newKey()
	if err != nil {
		return nil, err
	}
	s.IdentityFile = filepath.Join(dir, "id_ed25519")
	return pub, os.WriteFile(s.IdentityFile, pem, 0o600)
}

func newKey() (ssh.Signer, ssh.PublicKey, []byte, error) {
	_, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, nil, err
	}
	signer, err := ssh.NewSignerFromKey(priv)
	if err != nil {
		return nil, nil, nil, err
	}
	block, err := ssh.MarshalPrivateKey(priv, "")
	if err != nil {
		return nil, nil, nil, err
	}
	return signer, signer.PublicKey(), pem.EncodeToMemory(block), nil
}

// Target returns the server as a target for a dialer.
func (s *Server) Target() remote.Target {
	return remote.Target{
		Name: s.opt.Name, Address: s.Address, Port: s.Port, User: s.User,
		IdentityFiles: []string{s.IdentityFile}, KnownHosts: []string{s.KnownHosts},
	}
}

// KnownHosts writes the host keys of servers into one file, and returns its path.
func KnownHosts(t testing.TB, servers ...*Server) string {
	t.Helper()
	var keys []byte
	for _, s := range servers {
		key, err := os.ReadFile(s.KnownHosts)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key...)
	}
	path := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(path, keys, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Connections returns the number of accepted TCP connections.
func (s *Server) Connections() int { return int(s.connections.Load()) }

// Refused returns the number of refused keys.
func (s *Server) Refused() int { return int(s.refused.Load()) }

// Denied returns the number of wrong passwords and other wrong answers.
func (s *Server) Denied() int { return int(s.denied.Load()) }

// Open returns the number of open connections.
func (s *Server) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Cut closes every open connection. The server still accepts new ones.
func (s *Server) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Close()
	}
}

// Hush makes the server fall silent, as a cut network does. The server reads and sends nothing on
// any connection, but closes none.
func (s *Server) Hush() { s.hushed.Store(true) }

// Trips counts messages for whose answer a client waits: each costs it at least one round trip.
type Trips struct {
	Connections int // with their logins
	Sessions    int // channels for a command or for SFTP
	Requests    int // in sessions, such as exec; no keepalives, which depend on the time
	SFTP        int // requests to the SFTP server
	Orders      int // to an agent on the node
}

// Trips returns the round trips since the last call.
func (s *Server) Trips() (trips Trips) {
	s.count(func(t *Trips) { trips, *t = *t, Trips{} })
	return trips
}

func (s *Server) count(change func(*Trips)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.trips)
}

// Stop closes everything and waits until the server has ended completely.
func (s *Server) Stop() {
	s.mu.Lock()
	s.shut = true
	s.mu.Unlock()
	s.listener.Close()
	s.Cut()
	s.running.Wait()
}

func (s *Server) accept() {
	defer s.running.Done()
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.connections.Add(1)
		s.mu.Lock()
		if s.shut {
			s.mu.Unlock()
			c.Close()
			return
		}
		s.conns[c] = struct{}{}
		s.running.Add(1)
		s.mu.Unlock()
		go func() {
			defer s.running.Done()
			defer s.forget(c)
			s.serve(c)
		}()
	}
}

func (s *Server) forget(c net.Conn) {
	c.Close()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

func (s *Server) serve(c net.Conn) {
	s.count(func(t *Trips) { t.Connections++ })
	if s.opt.Reset {
		c.Read(make([]byte, 1))
		c.(*net.TCPConn).SetLinger(0)
		return
	}
	if s.opt.StallOnAccept {
		io.Copy(io.Discard, c)
		return
	}
	if s.opt.Refuse != "" {
		io.WriteString(c, s.opt.Refuse+"\r\n")
		return
	}
	bad := &faulty{Conn: c, hushed: &s.hushed}
	if n := s.faults.Add(1); s.opt.Cuts == 0 || int(n) <= s.opt.Cuts {
		bad.opt = s.opt
	}
	wire := net.Conn(bad)
	if s.opt.Latency > 0 {
		slow := newDelayed(wire, s.opt.Latency)
		defer slow.stop()
		wire = slow
	}
	config := *s.config
	if s.auths.Add(1) <= int64(s.opt.CutAuths) {
		config.PublicKeyCallback = func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
			c.Close()
			return nil, errors.New("cut")
		}
	}
	conn, chans, reqs, err := ssh.NewServerConn(wire, &config)
	if err != nil {
		return
	}
	defer conn.Close()
	s.serveChannels(chans, reqs)
}

// serveChannels serves the channels of one connection until it ends.
func (s *Server) serveChannels(chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) {
	var open atomic.Int64
	var handlers sync.WaitGroup
	defer handlers.Wait()
	handlers.Go(func() { ssh.DiscardRequests(reqs) })
	for ch := range chans {
		switch ch.ChannelType() {
		case "session":
			if n := open.Add(1); s.opt.MaxSessions > 0 && n > s.opt.MaxSessions {
				open.Add(-1)
				ch.Reject(ssh.ConnectionFailed, "open failed") // OpenSSH's message
				continue
			}
			handlers.Go(func() {
				defer open.Add(-1)
				s.session(ch)
			})
		case "direct-tcpip":
			if s.opt.NoForward {
				ch.Reject(ssh.Prohibited, "open failed") // OpenSSH's message
				continue
			}
			handlers.Go(func() { forward(ch) })
		default:
			ch.Reject(ssh.UnknownChannelType, ch.ChannelType())
		}
	}
}

// forward connects a channel to the address in its request, as a jump host does.
func forward(nc ssh.NewChannel) {
	var to struct {
		Host     string
		Port     uint32
		From     string
		FromPort uint32
	}
	if err := ssh.Unmarshal(nc.ExtraData(), &to); err != nil {
		nc.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	c, err := net.Dial("tcp", net.JoinHostPort(to.Host, fmt.Sprint(to.Port)))
	if err != nil {
		nc.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	ch, reqs, err := nc.Accept()
	if err != nil {
		c.Close()
		return
	}
	go ssh.DiscardRequests(reqs)
	var back sync.WaitGroup
	back.Go(func() {
		io.Copy(ch, c)
		ch.Close()
	})
	io.Copy(c, ch)
	c.Close()
	back.Wait()
}

// faulty is a connection with faults. It is slow, breaks or stalls after a number of bytes, or
// stalls together with the whole server.
type faulty struct {
	net.Conn
	opt    Options
	n      atomic.Int64
	hushed *atomic.Bool
}

func (f *faulty) silent() bool {
	return f.hushed.Load() || f.opt.StallAfter > 0 && f.n.Load() >= f.opt.StallAfter
}

func (f *faulty) Read(b []byte) (int, error) {
	if f.opt.Rate > 0 {
		b = b[:min(len(b), int(f.opt.Rate/20)+1)]
	}
	n := 0
	err := error(nil)
	if !f.silent() {
		n, err = f.Conn.Read(b)
	}
	for f.silent() { // the connection stays open until the client gives up or the server stops
		time.Sleep(10 * time.Millisecond)
		if _, err := f.Conn.Read(make([]byte, 4096)); err != nil {
			return 0, err
		}
	}
	if f.opt.Rate > 0 {
		time.Sleep(time.Duration(n) * time.Second / time.Duration(f.opt.Rate))
	}
	total := f.n.Add(int64(n))
	if k := f.opt.CutAfter; k > 0 && total >= k {
		f.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

func (f *faulty) Write(b []byte) (int, error) {
	if f.silent() {
		return len(b), nil // the bytes never arrive
	}
	return f.Conn.Write(b)
}

// delayed sends everything with a delay, as a long line does. It keeps the order and the rate.
type delayed struct {
	net.Conn
	by    time.Duration
	queue chan parcel
	done  chan struct{}
}

type parcel struct {
	at time.Time
	b  []byte
}

func newDelayed(c net.Conn, by time.Duration) *delayed {
	d := &delayed{Conn: c, by: by, queue: make(chan parcel, 1<<16), done: make(chan struct{})}
	go func() {
		defer close(d.done)
		for p := range d.queue {
			time.Sleep(time.Until(p.at))
			d.Conn.Write(p.b)
		}
	}()
	return d
}

func (d *delayed) Write(b []byte) (int, error) {
	d.queue <- parcel{time.Now().Add(d.by), []byte(strings.Clone(string(b)))}
	return len(b), nil
}

// stop ends the delayed writes. The server calls it after the SSH connection over d has ended.
func (d *delayed) stop() {
	d.Conn.Close()
	// The connection's goroutines may still write their last bytes, so stop drains the queue before
	// it closes it.
	for {
		select {
		case <-d.queue:
		case <-time.After(50 * time.Millisecond):
			close(d.queue)
			<-d.done
			return
		}
	}
}
