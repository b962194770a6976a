package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pkg/sftp"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// opensshLink is a connection of an OpenSSH master on this machine to a node. The master is
// dsbuild's own or the user's. Each session is a further ssh that passes its input and output to
// the master.
type opensshLink struct {
	folder string   // private folder for the sessions' logs
	ssh    string   // path of the program
	socket string   // the master's socket
	host   string   // the node's name for ssh
	master *process // nil if the master is the user's
	lost   func()   // marks the connection as ended, for a user's master

	names    atomic.Int64 // for file names in folder
	mu       sync.Mutex
	sessions map[*session]bool
	closed   bool
}

// session is an ssh that runs a program on the node through the master.
type session struct {
	*process
	log string // the file for ssh's own messages
}

// newLink returns the link to a node through the master that listens at socket. master is nil if it
// is the user's.
func newLink(program, host, folder, socket string, master *process) *opensshLink {
	return &opensshLink{
		ssh: program, host: host, folder: folder, socket: socket, master: master,
		sessions: map[*session]bool{},
	}
}

// masterLog returns the path of the log of dsbuild's master in its private folder.
func masterLog(folder string) string { return filepath.Join(folder, "log") }

// line implements link. OpenSSH does not report that a signal ended a program. So a shell waits for
// the program and exits with its status.
func (l *opensshLink) line(cmd Command) (string, error) { return commandLine(cmd, true) }

// args returns the options of an ssh that uses the master only. If the master is gone, that ssh
// must not open a connection of its own.
func (l *opensshLink) args(more ...string) []string {
	return append([]string{
		"-F", "none", "-S", l.socket, "-o", "ControlMaster=no", "-o", "ProxyCommand=false", "-o", "BatchMode=yes",
	}, more...)
}

// start starts a session.
func (l *opensshLink) start(stdin *os.File, stdout, stderr io.Writer, what ...string) (*session, error) {
	log := filepath.Join(l.folder, strconv.FormatInt(l.names.Add(1), 10))
	args := l.args(append([]string{"-T", "-E", log, "-o", "LogLevel=DEBUG2"}, what...)...)
	cmd := exec.Command(l.ssh, args...) //nolint:noctx // run ends the process with its context
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if stdin != nil {
		cmd.Stdin = stdin
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, &endedError{"opening a session"}
	}
	p, err := startProcess(cmd)
	if err != nil {
		return nil, fmt.Errorf("starting ssh: %w", err)
	}
	s := &session{process: p, log: log}
	l.sessions[s] = true
	return s, nil
}

// forget removes an ended session and its log.
func (l *opensshLink) forget(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.sessions[s] {
		return
	}
	delete(l.sessions, s)
	os.Remove(s.log) //nolint:errcheck // hangUp removes the folder
}

// said returns the messages of the session's own ssh.
func (s *session) said() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return ""
	}
	return string(text)
}

// Messages of a session's ssh.
const (
	saysOpened  = "master session id: "
	saysRefused = "Session open refused by peer"
	saysStatus  = "Received exit status from master "
)

// abandon ends a session early. A master exits, and so ends all its sessions, if an ssh leaves
// while the master opens a session for it. So abandon first waits until the session is open, at
// most leaveLimit.
func (s *session) abandon() {
	end := time.Now().Add(leaveLimit)
	for time.Now().Before(end) && !isClosed(s.done) && !strings.Contains(s.said(), saysOpened) {
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
		defer theirs.Close() // a refused session has not read it: the next one does
		// Nobody waits for this copy: the program may end before it has read all its input.
		go func() {
			io.CopyBuffer(ours, in, make([]byte, stdinBlock)) //nolint:errcheck // the program's exit status decides
			ours.Close()
		}()
	}
	return l.whenRoom(ctx, func() error { return l.runOnce(ctx, line, theirs, out, errs) })
}

// runOnce runs a line in its own session.
func (l *opensshLink) runOnce(ctx context.Context, line string, in *os.File, out, errs *Gate) error {
	s, err := l.start(in, out, errs, "--", l.host, line)
	if err != nil {
		return err
	}
	defer l.forget(s)
	select {
	case <-s.done:
	case <-ctx.Done():
		s.abandon()
		<-s.done
		return ctx.Err()
	}
	return l.sessionResult(s, runningCommand)
}

// roomLimit limits the time in which a session waits until others of the user's master have ended.
const roomLimit = 10 * time.Minute

// whenRoom opens a session. The sessions of several connections, and the user's own, share a user's
// master and its MaxSessions, so a refused one tries again.
func (l *opensshLink) whenRoom(ctx context.Context, open func() error) error {
	limited, cancel := context.WithTimeout(ctx, roomLimit)
	defer cancel()
	for {
		err := open()
		if l.master != nil || !errors.Is(err, errNoSession) {
			return err
		}
		if pause(limited, around(time.Second)) != nil {
			return cmp.Or(ctx.Err(), err)
		}
	}
}

// sshFailed is the exit status of an ssh that failed itself. A program may exit with the same
// status.
const sshFailed = 255

// sessionResult returns the result of a session.
func (l *opensshLink) sessionResult(s *session, doing string) error {
	code := s.cmd.ProcessState.ExitCode() // -1: a signal ended it
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
	case strings.Contains(said, saysRefused) && l.master == nil:
		return fault.WithHint(fmt.Errorf("%w: it is your ssh's, at %s: %s", errNoSession, l.socket, saysRefused),
			"end other sessions on it; or end it (ssh -O exit -S %s %s), and dsbuild logs in for each of its own; "+
				"or raise MaxSessions in the node's sshd_config", Quote(l.socket), Quote(l.host))
	case strings.Contains(said, saysRefused):
		return noSession(saysRefused)
	}
	if l.master == nil {
		l.lost()
	}
	return &endedError{doing}
}

// sftp implements link.
func (l *opensshLink) sftp(ctx context.Context, options ...sftp.ClientOption) (cl *sftp.Client, err error) {
	err = l.whenRoom(ctx, func() error {
		cl, err = l.sftpOnce(options...)
		return err
	})
	return cl, err
}

func (l *opensshLink) sftpOnce(options ...sftp.ClientOption) (*sftp.Client, error) {
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
			cl.Wait() //nolint:errcheck // the users of the client have the error already
			in.Close()
			s.leave()
			l.forget(s)
			out.Close()
		}()
		return cl, nil
	}
	in.Close()
	s.leave()
	defer l.forget(s) // its log has the reason
	out.Close()
	if !strings.Contains(s.said(), saysOpened) {
		return nil, cmp.Or(l.sessionResult(s, "opening SFTP"), err)
	}
	return nil, err // the node may have no SFTP
}

// leave waits for a session whose streams have ended, and kills it after leaveLimit.
func (s *session) leave() {
	select {
	case <-s.done:
	case <-time.After(leaveLimit):
		s.kill()
		<-s.done
	}
}

// leaveLimit is the time in which sessions must end when a connection ends.
const leaveLimit = 3 * time.Second

// hangUp implements link. It does not end a user's master.
func (l *opensshLink) hangUp() {
	open := l.leave()
	if l.master != nil {
		// Ask the process to end, and kill it after leaveLimit.
		l.master.cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
		select {
		case <-l.master.done:
		case <-time.After(leaveLimit):
			l.master.kill()
			<-l.master.done
		}
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

// leave prevents new sessions and returns the open ones.
func (l *opensshLink) leave() []*session {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return slices.Collect(maps.Keys(l.sessions))
}

// ask makes the node answer within limit. It opens a session, because a master forwards nothing
// else. A refused session also proves that the node answers.
func (l *opensshLink) ask(ctx context.Context, limit time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- l.runOnce(limited, "true", nil, WriteGate(nil), WriteGate(nil)) }()
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

// keepAlive checks the node behind a user's master while a session is open, and gives it up if the
// node stays silent. dsbuild's own master does this itself.
func (l *opensshLink) keepAlive(c *sshConn, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-c.dead:
			return
		case <-tick.C:
		}
		l.mu.Lock()
		busy := len(l.sessions) > 0
		l.mu.Unlock()
		if busy && errors.Is(l.ask(context.Background(), every), context.DeadlineExceeded) {
			c.giveUp(fmt.Sprintf("no answer for %s", every))
			return
		}
	}
}

var _ link = (*opensshLink)(nil)
