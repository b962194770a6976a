package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
)

// session opens a session. The caller ends it with endSession. Several connections and the user share the
// user's master and its MaxSessions, so a session rejected there is retried.
func (c *sshConn) session(ctx context.Context) (*ssh.Session, error) {
	start, alone := time.Now(), false
	for wait := time.Second; ; wait = min(2*wait, maxRoomPause) {
		s, err := c.openSession()
		if !c.master.usersOwn() || !errors.Is(err, errNoSession) {
			return s, err
		}
		limit := c.roomLimit()
		if limit == 0 && alone || limit > 0 && time.Since(start) > limit {
			return nil, err
		}
		if alone = limit == 0; alone {
			wait = time.Second // for one that was closed just now
		}
		if err := pause(ctx, jitter(wait)); err != nil {
			return nil, err
		}
	}
}

// roomLimit limits how long a new session waits until another session of the user's master ends. It is zero if only the
// user has sessions there, because those may stay open.
func (c *sshConn) roomLimit() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch own := int64(len(c.sessions)); {
	case c.master.open.Load() <= own:
		return 0
	case own > 0:
		return ownRoomLimit
	}
	return othersRoomLimit
}

const (
	// othersRoomLimit is the limit for a connection without a session.
	othersRoomLimit = 10 * time.Minute
	// ownRoomLimit is the limit for one with a session, which may last as long as the connection.
	ownRoomLimit = 20 * time.Second
	// maxRoomPause is the longest pause between two attempts. Each attempt costs the master some memory.
	maxRoomPause = 8 * time.Second
)

// openSession opens a session if the node has room for it, and returns errNoSession otherwise.
func (c *sshConn) openSession() (*ssh.Session, error) {
	c.mu.Lock()
	if isClosed(c.dead) {
		c.mu.Unlock()
		return nil, &endedError{openingSession}
	}
	c.opening++
	c.master.count(1)
	c.mu.Unlock()
	s, err := c.client.NewSession()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opening--
	if err != nil {
		c.master.count(-1)
	}
	var refused *ssh.OpenChannelError
	switch {
	case errors.As(err, &refused):
		c.refused = true
		return nil, c.master.noSession(refused.Message)
	case err != nil:
		return nil, &endedError{openingSession}
	}
	c.sessions[s], c.served = true, true
	for _, v := range c.target.setEnv { // without an answer, as in ssh
		name, value, _ := strings.Cut(v, "=")
		s.SendRequest("env", false, ssh.Marshal(struct{ Name, Value string }{name, value})) //nolint:errcheck // the session shows it
	}
	return s, nil
}

// endSession ends a session.
func (c *sshConn) endSession(s *ssh.Session) {
	s.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions[s] {
		c.master.count(-1)
	}
	delete(c.sessions, s)
}

// stdinBlock is the size of an input packet. A connection keeps a buffer of its largest packet, and
// there may be thousands of connections.
const stdinBlock = 4 << 10

// run runs a line in its own session until the line or ctx ends. Its error is an *ExitError,
// errNoSession, an *endedError, or the error of a node that cannot start the line.
func (c *sshConn) run(ctx context.Context, line string, in, out, errs *Gate) error {
	s, err := c.session(ctx)
	if err != nil {
		return err
	}
	defer c.endSession(s)
	stop := context.AfterFunc(ctx, func() {
		s.Signal(ssh.SIGTERM) //nolint:errcheck // some servers reject signals; Close ends the session
		s.Close()
	})
	defer stop()
	s.Stdout, s.Stderr = out, errs
	var stdin io.WriteCloser
	if in.r != nil {
		if stdin, err = s.StdinPipe(); err != nil {
			return err
		}
	}
	if err := s.Start(line); err != nil {
		if errors.Is(err, io.EOF) {
			return &endedError{startingCommand}
		}
		return fmt.Errorf("cannot start a command on the node: %w", err)
	}
	if stdin != nil {
		// run does not wait for this copy: the program may end before it has read all its input.
		go func() {
			io.CopyBuffer(stdin, in, make([]byte, stdinBlock)) //nolint:errcheck // the program's exit status decides
			stdin.Close()
		}()
	}
	err = s.Wait()
	var exit *ssh.ExitError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &exit):
		return &endedError{runningCommand}
	case exit.Signal() != "":
		return &ExitError{Code: -1, Signal: exit.Signal()}
	}
	return &ExitError{Code: exit.ExitStatus()}
}

// sftpLimit is the time in which an SFTP server must answer.
const sftpLimit = 20 * time.Second

// openSFTP opens a session of SFTP.
func (c *sshConn) openSFTP(ctx context.Context, options ...sftp.ClientOption) (*sftp.Client, error) {
	s, err := c.session(ctx)
	if err != nil {
		return nil, err
	}
	var cl *sftp.Client
	done := make(chan error, 1)
	go func() {
		var err error
		cl, err = sftpClient(s, options...)
		done <- err
	}()
	select {
	case err = <-done:
	case <-time.After(sftpLimit): // a hanging server is treated as missing; the client waits until its session ends
		err = errNoSFTP
	}
	if err != nil {
		c.endSession(s)
		return nil, err
	}
	go func() {
		cl.Wait() //nolint:errcheck // the users of the client have the error already
		c.endSession(s)
	}()
	return cl, nil
}

// sftpClient starts SFTP in a session.
func sftpClient(s *ssh.Session, options ...sftp.ClientOption) (*sftp.Client, error) {
	in, inErr := s.StdinPipe()
	out, outErr := s.StdoutPipe()
	errs, errsErr := s.StderrPipe()
	if err := errors.Join(inErr, outErr, errsErr, s.RequestSubsystem("sftp")); err != nil {
		return nil, err
	}
	go io.Copy(io.Discard, errs) //nolint:errcheck // unread, it would fill the session's window
	return sftp.NewClientPipe(out, in, options...)
}
