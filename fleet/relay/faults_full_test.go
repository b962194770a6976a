//go:build full && linux

package relay

import (
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
)

// await waits until a condition holds.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(40 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Error("not within 40 s: " + what)
			return
		}
	}
}

// arrived returns the number of bytes on a node.
func (s *stage) arrived(i int) int64 {
	for _, path := range []string{s.path(i) + ".part", s.path(i)} {
		if st, err := os.Stat(path); err == nil {
			return st.Size()
		}
	}
	return 0
}

// signal sends a signal to the programs on nodes.
func (s *stage) signal(number syscall.Signal, at ...int) {
	for _, pid := range s.programs(at...) {
		syscall.Kill(pid, number) //nolint:errcheck // it may have ended
	}
}

// pair brings the file to the first of two nodes, runs harm, and brings it to the second one, while
// the program on the first runs.
func pair(t *testing.T, harm func(s *stage)) *stage {
	t.Helper()
	s, r := set(t, 2, 2<<20)
	for _, n := range s.fleet.Nodes {
		if err := n.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.bringOne(t.Context(), r, 0, s.path(0)); err != nil {
		t.Fatal(err)
	}
	harm(s)
	if err := s.bringOne(t.Context(), r, 1, s.path(1)); err != nil {
		t.Error(err)
	}
	s.signal(syscall.SIGCONT, 0)
	s.mustHave(1)
	return s
}

// A parent that sends wrong bytes, or only half a piece, or dies, is replaced by the controller.
func TestFullRelayParentThatFails(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(s *stage){
		"wrong bytes": func(s *stage) {
			f, err := os.OpenFile(s.path(0), os.O_WRONLY, 0)
			if err == nil {
				_, err = f.WriteAt([]byte("wrong"), 1<<20)
			}
			if err := errors.Join(err, f.Close()); err != nil {
				s.t.Error(err)
			}
		},
		"half a piece": func(s *stage) {
			if err := os.Truncate(s.path(0), 1<<20+leastPiece/2); err != nil {
				s.t.Error(err)
			}
		},
		"killed":  func(s *stage) { s.signal(syscall.SIGKILL, 0) },
		"stopped": func(s *stage) { s.signal(syscall.SIGSTOP, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if s := pair(t, harm); s.sends.Load() != 2 {
				t.Errorf("the controller sent %d copies", s.sends.Load())
			}
		})
	}
}

// An installation may take the file away as soon as it is whole, before any other node asked for it:
// on the node to which the controller sent it, and on one that got it from another node.
func TestFullRelayParentPassesOnAFileThatIsGone(t *testing.T) {
	t.Parallel()
	s := pair(t, func(s *stage) { os.Remove(s.path(0)) })
	if s.sends.Load() != 1 {
		t.Errorf("the controller sent %d copies", s.sends.Load())
	}
	s, r := set(t, 3, 2<<20)
	for _, n := range s.fleet.Nodes {
		if err := n.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for i := range s.fleet.Nodes {
		if err := s.bringOne(t.Context(), r, i, s.path(i)); err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			s.signal(syscall.SIGKILL, 0)
			await(t, "its program has ended", func() bool { return len(s.programs(0)) == 0 })
			os.Remove(s.path(1))
		}
	}
	s.mustHave(2)
	if s.sends.Load() != 1 {
		t.Errorf("the controller sent %d copies", s.sends.Load())
	}
}

// Inner nodes die on the way; all others are complete.
func TestFullRelayInnerNodesDie(t *testing.T) {
	t.Parallel()
	s, r := set(t, 5, 4<<20)
	s.limit = rate.NewLimiter(2<<20, 1<<17)
	var killing sync.WaitGroup
	killing.Go(func() {
		await(t, "the file is under way", func() bool { return s.arrived(4) > 1<<20 })
		s.signal(syscall.SIGKILL, 0, 2) // the one to which the controller sends, and one behind it
	})
	s.bring(r, 0, 1, 2, 3, 4)
	killing.Wait()
	s.mustHave(0, 1, 2, 3, 4)
}

// A node in the middle of the chain whose disk fills up fails alone, and those behind it get the file.
func TestFullRelayNodeWithoutRoom(t *testing.T) {
	t.Parallel()
	s, r := set(t, 4, 2<<20)
	if err := syscall.Mount("tmpfs", s.homes[1], "tmpfs", 0, "size=1m"); err != nil {
		needs.Missing(t, "mounting a small file system: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(s.homes[1], syscall.MNT_DETACH) }) //nolint:errcheck // a test's scratch
	s.bring(r, 0, 1, 2, 3)
	s.mustHave(0, 2, 3)
	if err := s.fleet.Nodes[1].Err; !errors.Is(err, remote.ErrNoSpace) {
		t.Errorf("it failed with %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.homes[1], "*")); len(left) > 0 {
		t.Errorf("left on the full disk: %q", left)
	}
}

// Half of the nodes cannot be reached by others: they get the file, and nobody waits for them.
func TestFullRelayBlockedPorts(t *testing.T) {
	t.Parallel()
	s, r := set(t, 6, 2<<20)
	for i, n := range s.fleet.Nodes {
		if err := n.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		st, err := r.openPeer(t.Context(), n, "python3")
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			st.port = 1 // nobody listens there
		}
	}
	s.bring(r, 0, 1, 2, 3, 4, 5)
	s.mustHave(0, 1, 2, 3, 4, 5)
}

// Two runs at once do not meet.
func TestFullRelayTwoRuns(t *testing.T) {
	t.Parallel()
	a, first := set(t, 3, 2<<20)
	b, second := set(t, 3, 2<<20)
	var both sync.WaitGroup
	both.Go(func() { a.bring(first, 0, 1, 2) })
	both.Go(func() { b.bring(second, 0, 1, 2) })
	both.Wait()
	a.mustHave(0, 1, 2)
	b.mustHave(0, 1, 2)
}

// When the controller is gone, so is the program on each node.
func TestFullRelayControllerIsGone(t *testing.T) {
	t.Parallel()
	s, r := set(t, 3, 4<<20)
	s.limit = rate.NewLimiter(1<<20, 1<<17)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.bring(r, 0, 1, 2)
	}()
	await(t, "the file is under way", func() bool { return s.arrived(2) > 1<<19 })
	if n := len(s.programs()); n < 3 {
		t.Errorf("%d programs", n)
	}
	for _, n := range s.fleet.Nodes {
		n.Conn.Close() //nolint:errcheck // as a kill -9 does
	}
	s.mustBeGone()
	<-done
}

// A stranger gets nothing: without a certificate, with one of another run, or with someone else's
// token.
func TestFullRelayStranger(t *testing.T) {
	t.Parallel()
	s, r := set(t, 2, 1<<20)
	if err := s.fleet.Nodes[0].Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.bringOne(t.Context(), r, 0, s.path(0)); err != nil {
		t.Fatal(err)
	}
	older, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(r.peers["gpu0"].port))
	token := r.swarms[s.file.SHA256].token
	for name, c := range map[string]struct {
		issuer  *authority
		token   string
		version uint16
		want    int
	}{
		"the child":           {r.authority, token, tls.VersionTLS13, 4 + leastPiece},
		"no certificate":      {nil, token, tls.VersionTLS13, 0},
		"of another run":      {older, token, tls.VersionTLS13, 0},
		"someone else's":      {r.authority, rand.Text(), tls.VersionTLS13, 0},
		"an older version":    {r.authority, token, tls.VersionTLS12, 0},
		"a very long request": {r.authority, strings.Repeat("x", 9000), tls.VersionTLS13, 0},
	} {
		t.Run(name, func(t *testing.T) {
			config := &tls.Config{InsecureSkipVerify: true, MaxVersion: c.version} //nolint:gosec // a stranger does not care
			if c.issuer != nil {
				certificate, key, _ := c.issuer.issue("gpu1")
				pair, err := tls.X509KeyPair([]byte(certificate), []byte(key))
				if err != nil {
					t.Fatal(err)
				}
				config.Certificates = []tls.Certificate{pair}
			}
			got := 0
			if conn, err := tls.Dial("tcp", address, config); err == nil {
				fmt.Fprintf(conn, `{"token": %q, "at": 0}`+"\n", c.token)
				got, _ = io.ReadFull(conn, make([]byte, 4+leastPiece))
				conn.Close()
			}
			if got != c.want {
				t.Errorf("it got %d bytes", got)
			}
		})
	}
}
