package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/sftp"
)

// opensshLink is a connection that an OpenSSH on this machine has to a node, its
// master: dsbuild's own, or one of the user's. Each session is one more ssh, which hands
// its input and output to the master.
type opensshLink struct {
	folder string   // private, for what its processes write
	ssh    string   // the program
	socket string   // of the master
	host   string   // the node, as ssh calls it
	master *process // nil: one of the user's
	seats  *masters // bounds its sessions at a master of the user's
	lost   func()   // notes that the master is gone; for one that is not dsbuild's

	names    atomic.Int64 // of files in folder
	mu       sync.Mutex
	sessions map[*session]bool
	closed   bool
}

// session is an ssh that runs a program on the node by way of the master.
type session struct {
	*process
	log string // the file that it writes its own words to
}

// newLink returns the link to a node by way of a master that listens at socket, which
// master is, or, where that is nil, one of the user's.
func newLink(program, host, folder, socket string, master *process) *opensshLink {
	return &opensshLink{ssh: program, host: host, folder: folder, socket: socket, master: master, sessions: map[*session]bool{}}
}

// masterLog is the file in a private folder that a master of dsbuild's writes to.
func masterLog(folder string) string { return filepath.Join(folder, "log") }

// line implements link. OpenSSH says nothing of a program that a signal has ended: so a
// shell stays, and gives its status on.
func (l *opensshLink) line(cmd Command) (string, error) {
	const giveOn = "\nexit $?"
	if cmd.Setup != "" { // that is for a POSIX shell in any case
		line, err := CommandLine(cmd)
		return line + giveOn, err
	}
	program, err := programLine(cmd)
	if err != nil {
		return "", err
	}
	return checkLine("/bin/sh -c " + Quote(program+giveOn))
}

// args are the options of an ssh that reaches the master and nothing else: without one
// it must not make a connection by itself.
func (l *opensshLink) args(more ...string) []string {
	return append([]string{"-F", "none", "-S", l.socket, "-o", "ControlMaster=no", "-o", "ProxyCommand=false", "-o", "BatchMode=yes"}, more...)
}

// proxyCommand is how an ssh reaches what lies behind the node.
func (l *opensshLink) proxyCommand() string {
	words := []string{Quote(l.ssh)}
	for _, w := range l.args("-W", "") {
		words = append(words, strings.ReplaceAll(Quote(w), "%", "%%"))
	}
	words[len(words)-1] = "'[%h]:%p'"
	return strings.Join(append(words, "--", Quote(l.host)), " ")
}

// start starts a session.
func (l *opensshLink) start(stdin *os.File, stdout, stderr io.Writer, what ...string) (*session, error) {
	log := filepath.Join(l.folder, strconv.FormatInt(l.names.Add(1), 10))
	args := l.args(append([]string{"-T", "-E", log, "-o", "LogLevel=DEBUG2"}, what...)...)
	cmd := exec.Command(l.ssh, args...) //nolint:noctx // run ends it when its context does
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if stdin != nil {
		cmd.Stdin = stdin
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, &endedError{"opening a session"}
	}
	if l.master == nil && !l.seats.take(l.socket) {
		return nil, noSession("an OpenSSH on this machine, on whose connection this one rides, needs room for others")
	}
	p, err := startProcess(cmd)
	if err != nil {
		l.free()
		return nil, fmt.Errorf("starting ssh: %w", err)
	}
	s := &session{process: p, log: log}
	l.sessions[s] = true
	return s, nil
}

// forget ends what is known of a session that has ended.
func (l *opensshLink) forget(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.sessions[s] {
		return
	}
	delete(l.sessions, s)
	l.free()
	os.Remove(s.log) //nolint:errcheck // its folder is removed in the end
}

// free gives back the room of a session at a master of the user's.
func (l *opensshLink) free() {
	if l.master == nil {
		l.seats.free(l.socket)
	}
}

// said is what the session's ssh has said itself.
func (s *session) said() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return ""
	}
	return string(text)
}

// Words of a session's ssh.
const (
	saysOpened  = "master session id: "
	saysRefused = "Session open refused by peer"
	saysStatus  = "Received exit status from master "
)

// abandon ends a session that is not waited for. A master ends, for everybody, when an
// ssh leaves that it is opening a session for: so that is waited for.
func (s *session) abandon() {
	for end := time.Now().Add(leaveLimit); time.Now().Before(end) && !s.hasEnded() && !strings.Contains(s.said(), saysOpened); {
		time.Sleep(5 * time.Millisecond)
	}
	s.kill()
}

// run implements link.
func (l *opensshLink) run(ctx context.Context, line string, in, out, errs *Gate) error {
	var theirs, ours *os.File
	if in.r != nil {
		var err error
		if theirs, ours, err = os.Pipe(); err != nil {
			return err
		}
		defer ours.Close()
		defer theirs.Close()
	}
	s, err := l.start(theirs, out, errs, "--", l.host, line)
	if err != nil {
		return err
	}
	defer l.forget(s)
	if ours != nil {
		theirs.Close()
		// Not waited for: a program may end before it has read all its input.
		go func() {
			io.CopyBuffer(ours, in, make([]byte, stdinBlock)) //nolint:errcheck // the program's exit status is the verdict
			ours.Close()
		}()
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		s.abandon()
		<-s.done
		return ctx.Err()
	}
	return l.verdict(s, runningCommand)
}

// sshFailed is the exit status of an ssh that has failed itself; a program may have the same.
const sshFailed = 255

// verdict is how a session ended.
func (l *opensshLink) verdict(s *session, doing string) error {
	code := s.code()
	switch {
	case code == 0:
		return nil
	case code > 0 && code != sshFailed:
		return &ExitError{Code: code}
	}
	said := s.said()
	switch {
	case strings.Contains(said, fmt.Sprint(saysStatus, sshFailed)):
		return &ExitError{Code: sshFailed}
	case strings.Contains(said, saysRefused):
		return noSession(saysRefused)
	}
	if l.master == nil {
		l.lost()
	}
	return &endedError{doing}
}

// sftp implements link.
func (l *opensshLink) sftp(options ...sftp.ClientOption) (*sftp.Client, error) {
	input, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer input.Close()
	out, output, err := os.Pipe()
	if err != nil {
		in.Close()
		return nil, err
	}
	defer output.Close()
	s, err := l.start(input, output, nil, "-s", "--", l.host, "sftp")
	if err != nil {
		in.Close()
		out.Close()
		return nil, err
	}
	input.Close()
	output.Close()
	cl, err := sftp.NewClientPipe(out, in, options...)
	if err == nil {
		go func() {
			cl.Wait() //nolint:errcheck // whom it matters has been told
			in.Close()
			l.reap(s)
			out.Close()
		}()
		return cl, nil
	}
	in.Close()
	l.reap(s)
	out.Close()
	if ended := l.verdict(s, "opening SFTP"); errors.Is(ended, errNoSession) {
		return nil, ended
	}
	return nil, err
}

// reap waits for the end of a session whose streams have ended.
func (l *opensshLink) reap(s *session) {
	select {
	case <-s.done:
	case <-time.After(leaveLimit):
		s.kill()
		<-s.done
	}
	l.forget(s)
}

// leaveLimit is how long the end of a connection waits until its sessions have ended.
const leaveLimit = 3 * time.Second

// hangUp implements link. A master of the user's is left alone.
func (l *opensshLink) hangUp() {
	open := l.leave()
	if l.master != nil {
		l.master.end()
	}
	var all sync.WaitGroup
	for _, s := range open {
		all.Go(func() {
			s.abandon()
			<-s.done
			l.forget(s)
		})
	}
	all.Wait()
	os.RemoveAll(l.folder) //nolint:errcheck // nothing in it is a secret
}

// sever implements link.
func (l *opensshLink) sever() {
	open := l.leave()
	if l.master != nil {
		l.master.kill()
	} else {
		l.lost()
	}
	for _, s := range open {
		s.kill()
	}
}

// leave opens nothing more, and returns the sessions that are open.
func (l *opensshLink) leave() []*session {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	var open []*session
	for s := range l.sessions {
		open = append(open, s)
	}
	return open
}

// busy reports whether a session is open.
func (l *opensshLink) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.sessions) > 0
}

// ask has the node answer, within limit: by a session, for a master passes on nothing
// else. That the node allows none is an answer, too.
func (l *opensshLink) ask(ctx context.Context, limit time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- l.run(limited, "true", ReadGate(nil), WriteGate(nil), WriteGate(nil)) }()
	select {
	case err := <-done:
		if errors.As(err, new(*ExitError)) {
			return nil
		}
		return err
	case <-limited.Done():
		return limited.Err()
	}
}

// keepAlive asks the node behind a master of the user's while something runs there, and
// gives it up where it stays silent. A master of dsbuild's does so itself.
func (l *opensshLink) keepAlive(c *sshConn, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-c.dead:
			return
		case <-tick.C:
		}
		if l.busy() && errors.Is(l.ask(context.Background(), every), context.DeadlineExceeded) {
			c.giveUp(fmt.Sprintf("no sign of life for %s", every))
			return
		}
	}
}

var _ link = (*opensshLink)(nil)
