//go:build linux

package relay

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// stage is a fleet of SSH servers in this process, and a file to bring to them.
type stage struct {
	t     *testing.T
	fleet *fleet.Fleet
	homes []string
	file  fleet.LocalFile
	data  []byte
	limit *rate.Limiter // of the controller
	sends atomic.Int32  // uploads by the controller
}

// set makes a stage. Its relay always takes place.
func set(t *testing.T, count, size int) (*stage, *Relay) {
	t.Helper()
	s := &stage{t: t, data: make([]byte, size)}
	rand.Read(s.data)
	sum := sha256.Sum256(s.data)
	s.file = fleet.LocalFile{Path: filepath.Join(t.TempDir(), "file"), SHA256: hex.EncodeToString(sum[:]), Size: int64(size)}
	if err := os.WriteFile(s.file.Path, s.data, 0o600); err != nil {
		t.Fatal(err)
	}
	opt := fleet.Options{
		Command: "test", By: "tester", Reporter: ui.New(io.Discard, ui.Options{}),
		Dialer: remote.NewSSH(remote.Options{Config: remote.NoConfig, AgentSocket: "none", Timeout: time.Minute}), Forks: count,
	}
	var servers []*sshtest.Server
	for i := range count {
		server := sshtest.Start(t, sshtest.Options{Name: fmt.Sprint("gpu", i)})
		servers = append(servers, server)
		s.homes = append(s.homes, server.Home)
		opt.Hosts = append(opt.Hosts, inventory.Host{
			Name: fmt.Sprint("gpu", i), Node: fmt.Sprint("gpu", i), Address: server.Address, Port: server.Port, User: server.User, IdentityFile: server.IdentityFile,
		})
	}
	opt.KnownHosts = sshtest.KnownHosts(t, servers...)
	s.fleet = fleet.New(opt)
	s.fleet.Show("bringing", 0, 0)
	r := s.relay(Options{Fanout: 1})
	return s, r
}

// relay makes a relay of the stage's file.
func (s *stage) relay(opt Options) *Relay {
	r := New(opt)
	s.t.Cleanup(func() {
		r.Close()
		s.fleet.Close()
		s.mustBeGone()
	})
	r.Register(s.file, s.fleet.Nodes)
	return r
}

func (s *stage) path(i int) string { return filepath.Join(s.homes[i], "file") }

// bring brings the file to nodes, all at once.
func (s *stage) bring(r *Relay, at ...int) {
	s.t.Helper()
	var tasks []fleet.Task
	for _, i := range at {
		tasks = append(tasks, fleet.Task{Node: s.fleet.Nodes[i], Steps: []fleet.Step{{Name: "put", Do: func(ctx context.Context) error {
			return s.bringOne(ctx, r, i, s.path(i))
		}}}})
	}
	s.fleet.ConnectAndRun(s.t.Context(), "bringing", tasks, nil)
}

func (s *stage) bringOne(ctx context.Context, r *Relay, i int, path string) error {
	n := s.fleet.Nodes[i]
	return r.Deliver(ctx, n, "python3", s.file.SHA256, path, func(ctx context.Context) error {
		s.sends.Add(1)
		return n.Conn.Put(ctx, remote.Upload{
			Open: func() (io.ReadSeekCloser, error) { return os.Open(s.file.Path) }, Size: s.file.Size, SHA256: s.file.SHA256,
			Path: path, Mode: 0o600, Limit: s.limit,
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

// programs lists the processes of relays on nodes, without an argument on all of them.
func (s *stage) programs(at ...int) (found []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range all {
		env, _ := os.ReadFile(file)
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
		for i, home := range s.homes {
			if (len(at) == 0 || slices.Contains(at, i)) && bytes.Contains(env, []byte("HOME="+home+"\x00")) && bytes.Contains(line, []byte("#dsbuild")) {
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
	for end := time.Now().Add(time.Minute); len(s.programs()) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("still running: %v", s.programs())
		}
	}
}

// The controller sends one copy, and three nodes have the file. Each knows from whom.
func TestThreeNodes(t *testing.T) {
	t.Parallel()
	s, r := set(t, 3, 3<<20+17)
	s.bring(r, 0, 1, 2)
	s.mustHave(0, 1, 2)
	if n := s.sends.Load(); n != 1 {
		t.Errorf("the controller sent %d copies", n)
	}
	for i, want := range []string{`[{"node":"","bytes":3145745}]`, `[{"node":"gpu0","bytes":3145745}]`, `[{"node":"gpu1","bytes":3145745}]`} {
		if got, _ := json.Marshal(r.Sources(s.fleet.Nodes[i], s.file.Size)); string(got) != want {
			t.Errorf("gpu%d: %s", i, got)
		}
	}
}

// No node sends more bytes per second to others than the limit.
func TestLimitOfANode(t *testing.T) {
	t.Parallel()
	s, _ := set(t, 2, 3<<20)
	r := s.relay(Options{Fanout: 1, Limit: 2 << 20})
	begin := time.Now()
	if s.bring(r, 0, 1); time.Since(begin) < 1400*time.Millisecond {
		t.Errorf("3 MiB at 2 MiB/s took %s", time.Since(begin))
	}
	s.mustHave(0, 1)
	if got := r.Sources(s.fleet.Nodes[1], s.file.Size); len(got) != 1 || got[0].Node != "gpu0" || got[0].Bytes != s.file.Size {
		t.Errorf("%+v", got)
	}
}
