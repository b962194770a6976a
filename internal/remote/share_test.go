package remote_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// hold keeps a session open until the test ends.
func hold(t *testing.T, c remote.Conn) {
	t.Helper()
	in, keep := io.Pipe()
	out, began := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Run(context.WithoutCancel(t.Context()), remote.Command{Argv: []string{"sh", "-c", "echo; cat"}, Stdin: in, Stdout: began})
		began.Close()
	}()
	t.Cleanup(func() {
		keep.Close()
		<-ended
	})
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, out)
}

func runTrue(t *testing.T, c remote.Conn) {
	t.Helper()
	if err := c.Run(t.Context(), remote.Command{Argv: []string{"true"}}); err != nil {
		t.Error(err)
	}
}

// Callers that reach a node in the same way share a connection, whatever name they use, until
// the last has closed it.
func TestSharing(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	d := remote.WithSharing(dialer())
	target := s.Target()
	var conns [3]remote.Conn
	var all sync.WaitGroup
	for i := range conns {
		all.Go(func() {
			t := target
			t.Name = "node/" + strings.Repeat("e", i)
			conns[i], _ = d.Dial(context.Background(), t)
		})
	}
	all.Wait()
	for _, c := range conns {
		if c == nil {
			t.Fatal("no connection")
		}
		runTrue(t, c)
	}
	if n := s.Connections(); n != 1 {
		t.Errorf("%d connections for one node", n)
	}
	// Closing one share does not affect the others.
	hold(t, conns[1])
	conns[0].Close()
	conns[0].Close()
	runTrue(t, conns[1])
	// Another user gets another connection.
	target.User = "other"
	runTrue(t, dial(t, d, target))
	if n := s.Connections(); n != 2 {
		t.Errorf("%d connections for two users", n)
	}
	conns[2].Close()
	runTrue(t, conns[1])
	conns[1].Close()
	for begin := time.Now(); s.Open() > 1; time.Sleep(10 * time.Millisecond) {
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("%d connections are open", s.Open())
		}
	}
	// A closed connection is opened anew, and so is a broken one.
	again := dial(t, d, s.Target())
	runTrue(t, again)
	s.Cut()
	if err := again.Run(t.Context(), remote.Command{Argv: []string{"sleep", "5"}}); !errors.Is(err, remote.ErrLost) {
		t.Errorf("cut: %v", err)
	}
	runTrue(t, dial(t, d, s.Target()))
	if n := s.Connections(); n != 4 {
		t.Errorf("%d connections in all", n)
	}
}

// A connection has a limited number of users.
func TestSharingIsBounded(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{MaxSessions: 10})
	d := remote.WithSharing(dialer())
	for range 9 {
		c := dial(t, d, s.Target())
		hold(t, c)
		runTrue(t, c)
	}
	if n := s.Connections(); n != 3 {
		t.Errorf("%d connections for 9 users", n)
	}
}

// If one caller gives up, the others still get the connection; if all do, the attempt ends.
func TestSharingOfAnAttempt(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{Latency: 300 * time.Millisecond})
	d := remote.WithSharing(dialer())
	early, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	var first error
	var all sync.WaitGroup
	all.Go(func() { _, first = d.Dial(early, s.Target()) })
	time.Sleep(50 * time.Millisecond)
	runTrue(t, dial(t, d, s.Target()))
	all.Wait()
	if !errors.Is(first, context.DeadlineExceeded) || s.Connections() != 1 {
		t.Errorf("the first: %v, %d connections", first, s.Connections())
	}
	stalled := sshtest.Start(t, sshtest.Options{StallOnAccept: true})
	early, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := d.Dial(early, stalled.Target()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stalled: %v", err)
	}
	for begin := time.Now(); stalled.Open() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(begin) > 5*time.Second {
			t.Fatal("somebody still tries")
		}
	}
	refused := sshtest.Start(t, sshtest.Options{RefuseAuth: true})
	if _, err := d.Dial(t.Context(), refused.Target()); !errors.Is(err, remote.ErrAuth) {
		t.Errorf("refused: %v", err)
	}
}
