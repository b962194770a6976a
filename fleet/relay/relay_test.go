//go:build linux

package relay

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/remote/sshtest"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// stage is a fleet of SSH servers in this process, and a file to bring to them.
type stage struct {
	t     *testing.T
	fleet *fleet.Fleet
	homes []string
	file  File
	data  []byte
	limit *rate.Limiter // of the driver
	sends atomic.Int32  // uploads by the driver
}

// set makes a stage. Its relay always takes place.
func set(t *testing.T, count, size int) (*stage, *Relay) {
	t.Helper()
	s := &stage{t: t, data: make([]byte, size)}
	rand.Read(s.data)
	sum := sha256.Sum256(s.data)
	s.file = File{Path: filepath.Join(t.TempDir(), "file"), SHA256: hex.EncodeToString(sum[:]), Size: int64(size)}
	if err := os.WriteFile(s.file.Path, s.data, 0o600); err != nil {
		t.Fatal(err)
	}
	opt := fleet.Options{
		Command: "test", By: "tester", Reporter: ui.New(io.Discard, ui.Options{}), KnownHosts: filepath.Join(t.TempDir(), "known_hosts"),
		Dialer: remote.NewSSH(remote.Options{Config: remote.NoConfig, AgentSocket: "none", Timeout: 5 * time.Second}), Forks: count,
	}
	var keys []byte
	for i := range count {
		server := sshtest.Start(t, sshtest.Options{Name: fmt.Sprint("gpu", i)})
		key, err := os.ReadFile(server.KnownHosts)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key...)
		s.homes = append(s.homes, server.Home)
		opt.Hosts = append(opt.Hosts, inventory.Host{
			Name: fmt.Sprint("gpu", i), Node: fmt.Sprint("gpu", i), Address: server.Address, Port: server.Port, User: server.User, IdentityFile: server.IdentityFile,
		})
	}
	if err := os.WriteFile(opt.KnownHosts, keys, 0o600); err != nil {
		t.Fatal(err)
	}
	s.fleet = fleet.New(opt)
	s.fleet.Show("bringing", 0, 0, nil)
	r := New(Options{Fanout: 1})
	t.Cleanup(func() {
		r.Close()
		s.fleet.Close()
		s.mustBeGone()
	})
	r.Announce(s.file, s.fleet.Nodes)
	return s, r
}

func (s *stage) path(i int) string { return filepath.Join(s.homes[i], "file") }

// bring brings the file to nodes, all at once, and calls after for each that has it, before its
// connection may end.
func (s *stage) bring(r *Relay, at ...int) {
	s.t.Helper()
	var walks []fleet.Walk
	for _, i := range at {
		walks = append(walks, fleet.Walk{Node: s.fleet.Nodes[i], Steps: []fleet.Step{{Name: "put", Do: func(ctx context.Context) error {
			return s.bringOne(ctx, r, i, s.path(i))
		}}}})
	}
	s.fleet.Reach(s.t.Context(), "bringing", walks, nil)
}

func (s *stage) bringOne(ctx context.Context, r *Relay, i int, path string) error {
	n := s.fleet.Nodes[i]
	return r.Bring(ctx, n, "python3", s.file.SHA256, path, func(ctx context.Context) error {
		s.sends.Add(1)
		return n.Conn.Put(ctx, remote.Upload{
			Open: func() (io.ReadSeekCloser, error) { return os.Open(s.file.Path) }, Size: s.file.Size, SHA256: s.file.SHA256,
			Path: path, Mode: 0o600, Resume: true, Limit: s.limit,
		})
	})
}

// mustHave fails unless nodes have the whole file.
func (s *stage) mustHave(at ...int) {
	s.t.Helper()
	for _, i := range at {
		if got, err := os.ReadFile(s.path(i)); !bytes.Equal(got, s.data) || s.fleet.Nodes[i].Err != nil {
			s.t.Errorf("gpu%d: %d bytes, %v, %v", i, len(got), err, s.fleet.Nodes[i].Err)
		}
	}
}

// programs lists the processes of relays on a node. Without names it lists those of all nodes.
func (s *stage) programs(at ...int) (found []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range all {
		env, _ := os.ReadFile(file)
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
		for i, home := range s.homes {
			if (len(at) == 0 || slices.Contains(at, i)) && bytes.Contains(env, []byte("HOME="+home+"\x00")) && bytes.HasPrefix(line, []byte("python3")) && bytes.Contains(line, []byte("#dsbuild")) {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
				found = append(found, pid)
			}
		}
	}
	return found
}

// mustBeGone fails unless all programs end.
func (s *stage) mustBeGone() {
	s.t.Helper()
	for end := time.Now().Add(10 * time.Second); len(s.programs()) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("still running: %v", s.programs())
		}
	}
}

// await waits until a condition holds.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Error("not within 20 s: " + what)
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

// The driver sends one copy, and three nodes have the file. Each knows from whom.
func TestThreeNodes(t *testing.T) {
	t.Parallel()
	s, r := set(t, 3, 3<<20+17)
	s.bring(r, 0, 1, 2)
	s.mustHave(0, 1, 2)
	if n := s.sends.Load(); n != 1 {
		t.Errorf("the driver sent %d copies", n)
	}
	for i, want := range []string{`[{"node":"","bytes":3145745}]`, `[{"node":"gpu0","bytes":3145745}]`, `[{"node":"gpu1","bytes":3145745}]`} {
		if got, _ := json.Marshal(r.Sources(s.fleet.Nodes[i], s.file.Size)); string(got) != want {
			t.Errorf("gpu%d: %s", i, got)
		}
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
	s.mustHave(1)
	return s
}

// A parent that sends wrong bytes, or only half a piece, or dies, is replaced by the driver.
func TestParentThatFails(t *testing.T) {
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
		"killed": func(s *stage) {
			for _, pid := range s.programs(0) {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if s := pair(t, harm); s.sends.Load() != 2 {
				t.Errorf("the driver sent %d copies", s.sends.Load())
			}
		})
	}
}

// An installation may take the file away as soon as it is whole.
func TestParentPassesOnAFileThatIsGone(t *testing.T) {
	t.Parallel()
	s := pair(t, func(s *stage) { os.Remove(s.path(0)) })
	if s.sends.Load() != 1 {
		t.Errorf("the driver sent %d copies", s.sends.Load())
	}
}

// Inner nodes die on the way; all others are complete.
func TestInnerNodesDie(t *testing.T) {
	t.Parallel()
	s, r := set(t, 5, 4<<20)
	s.limit = rate.NewLimiter(2<<20, 1<<17)
	var killing sync.WaitGroup
	killing.Go(func() {
		await(t, "the file is under way", func() bool { return s.arrived(4) > 1<<20 })
		for _, pid := range s.programs(0, 2) { // the one to which the driver sends, and one behind it
			syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	s.bring(r, 0, 1, 2, 3, 4)
	killing.Wait()
	s.mustHave(0, 1, 2, 3, 4)
}

// A node that cannot write the file fails alone.
func TestNodeWithoutRoom(t *testing.T) {
	t.Parallel()
	s, r := set(t, 4, 2<<20)
	if err := os.Mkdir(s.path(1)+".part", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.path(1)+".part", "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.bring(r, 0, 1, 2, 3)
	s.mustHave(0, 2, 3)
	if s.fleet.Nodes[1].Err == nil {
		t.Error("it did not fail")
	}
}

// Half of the nodes cannot be reached by others: they get the file, and nobody waits for them.
func TestBlockedPorts(t *testing.T) {
	t.Parallel()
	s, r := set(t, 6, 2<<20)
	for i, n := range s.fleet.Nodes {
		if err := n.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		st, err := r.openStation(t.Context(), n, "python3")
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
func TestTwoRuns(t *testing.T) {
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

// When the driver is gone, so is the program on each node.
func TestDriverIsGone(t *testing.T) {
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
func TestStranger(t *testing.T) {
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
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(r.stations["gpu0"].port))
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

// The certificates hold at any time that a node's clock may show.
func TestWrongClock(t *testing.T) {
	t.Parallel()
	a, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	if c := a.certificate; c.NotBefore.Unix() > 0 || c.NotAfter.Year() < 9999 {
		t.Errorf("%s to %s", c.NotBefore, c.NotAfter)
	}
}
