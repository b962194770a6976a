//go:build full && linux

package check

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fanout"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// metered counts the bytes to and from a node.
type metered struct {
	remote.Runner
	to, from *atomic.Int64
}

func (m metered) Run(ctx context.Context, cmd remote.Command) error {
	cmd.Stdin = counted{cmd.Stdin, m.to}
	cmd.Stdout = countedOut{cmd.Stdout, m.from}
	return m.Runner.Run(ctx, cmd)
}

type counted struct {
	io.Reader
	n *atomic.Int64
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n.Add(int64(n))
	return n, err
}

type countedOut struct {
	io.Writer
	n *atomic.Int64
}

func (c countedOut) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return c.Writer.Write(b)
}

// outward is an address of this machine that is not a loopback address.
func outward(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if ip := a.(*net.IPNet).IP.To4(); ip != nil && !ip.IsLoopback() {
			return ip.String()
		}
	}
	t.Fatal("this machine has no address")
	return ""
}

// 200 nodes call each other: 39,800 calls, all between programs on this machine, one of which
// does not answer. A node of a real fleet has a two-hundredth of this machine's cost.
func TestFullCheckManyNodes(t *testing.T) {
	const many, deaf = 200, 99
	raiseFiles(t)
	t.Setenv("TMPDIR", "/dev/shm") // all share one disk here; real nodes do not
	address := outward(t)
	r := &run{fleet: fleet.New(fleet.Options{}), opt: Options{Options: fleet.Options{Reporter: ui.New(io.Discard, ui.Options{})}, Port: freePort(t)}}
	mark := t.Name() + random()
	var to, from atomic.Int64
	for i := range many {
		name := "n" + string(rune('0'+i/100)) + string(rune('0'+i/10%10)) + string(rune('0'+i%10))
		m := &member{Node: &fleet.Node{Host: hostsNamed(name)[0], Status: report.OK}, index: i, token: strings.ToLower(random() + random())[:32]}
		r.members = append(r.members, m)
	}
	defer r.closeAll()
	begin := time.Now()
	for _, result := range fanout.Run(t.Context(), r.members, fanout.Options{Forks: 8}, func(ctx context.Context, m *member) (struct{}, error) {
		req := agentRequest{LimitS: 60, Run: "many", Token: m.token, Master: address, Data: []string{}, Output: []string{}}
		m.route = &routed{"eth0", address}
		var err error
		m.agent, err = startAgent(ctx, metered{here{mark: mark}, &to, &from}, "python3", req, func(event) {}, &m.survey)
		return struct{}{}, err
	}) {
		if result.Err != nil {
			t.Fatal(result.Err)
		}
	}
	t.Logf("result: %d programs started on one machine in %.0f s", many, time.Since(begin).Seconds())
	r.members[deaf].survey.Port = freePort(t) // nobody listens there
	to.Store(0)
	from.Store(0)
	before := spent(t, mark)
	begin = time.Now()
	r.checkPort(t.Context())
	r.checkNetwork(t.Context())
	took := time.Since(begin)
	used := spent(t, mark) - before
	if r.pairs != (Pairs{Tried: many * (many - 1), Failed: many - 1}) {
		t.Errorf("%+v", r.pairs)
	}
	if got := r.said(); got != "n099 error: no other node can reach it at "+address+": Connection refused" {
		t.Error(got[:min(len(got), 2000)])
	}
	t.Logf("result: %d calls between %d programs on one machine: %.0f s, %.1f ms of CPU for each call on both sides; sent to each node %.0f KB, answered %.0f B",
		r.pairs.Tried, many, took.Seconds(), used.Seconds()*1e3/float64(r.pairs.Tried), float64(to.Load())/many/1e3, float64(from.Load())/many)
}

// raiseFiles lets this process open as many files as it may.
func raiseFiles(t *testing.T) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
}

// spent is the CPU time of the processes of the nodes with a mark.
func spent(t *testing.T, mark string) (total time.Duration) {
	t.Helper()
	for _, dir := range processes(t, mark) {
		text, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			continue // it has ended
		}
		words := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		for _, w := range words[11:13] { // in user mode, and in the kernel
			ticks, err := strconv.Atoi(w)
			if err != nil {
				t.Fatal(err)
			}
			total += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return total
}
