package fleet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// deaf are nodes that never answer, some of them after a long time.
type deaf struct{ long map[string]time.Duration }

func (d deaf) Dial(ctx context.Context, t remote.Target) (remote.Conn, error) {
	wait := d.long[t.Name]
	if wait == 0 {
		wait = 1500 * time.Millisecond
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
	return nil, fmt.Errorf("%w: dial tcp 10.0.0.%d:22: i/o timeout", remote.ErrDial, len(t.Name))
}

// noSteps are all nodes without further steps.
func noSteps(f *fleet.Fleet) []fleet.Task {
	var tasks []fleet.Task
	for _, n := range f.Nodes {
		tasks = append(tasks, fleet.Task{Node: n})
	}
	return tasks
}

// surveyed is what is said while 2,000 nodes are asked, of which two take longer
// than all others. Time passes at once.
func surveyed(t *testing.T, opts ui.Options) string {
	t.Helper()
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		console := ui.New(&out, opts)
		opt := fleet.Options{Reporter: console, Dialer: deaf{map[string]time.Duration{"gpu0007": 100 * time.Second, "gpu0900": 70 * time.Second}}}
		for i := range 2000 {
			name := fmt.Sprintf("gpu%04d", i+1)
			opt.Hosts = append(opt.Hosts, inventory.Host{Name: name, Node: name, Address: name})
		}
		f := fleet.New(opt)
		f.ConnectAndRun(t.Context(), "probing", noSteps(f), nil)
		console.Close()
	})
	return out.String()
}

// TestManyNodesAreOneBar: elsewhere than on a terminal few lines say how it
// stands, and what everybody waits for.
func TestManyNodesAreOneBar(t *testing.T) {
	t.Parallel()
	out := surveyed(t, ui.Options{})
	if n := strings.Count(out, "\n"); n > 8 {
		t.Errorf("%d lines", n)
	}
	for _, want := range []string{
		`(?m)^probing: \d+%  \d+ of 2000 nodes; slowest: gpu0007 \(connect, 1m\d+s\), gpu0900 \(connect, \d+s\); \d+ failed: gpu\[0001-0006,0008-0899,0901-1\d+\]$`,
		`(?m)^probing: 100% in 1m\d\ds  2000 of 2000 nodes; 2000 failed: gpu\[0001-2000\]$`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no line %s in\n%s", want, out)
		}
	}
}

// TestManyNodesOnATerminal: the bar, and below it who is slow and who failed.
func TestManyNodesOnATerminal(t *testing.T) {
	t.Parallel()
	out := surveyed(t, ui.Options{Terminal: true, Size: func() (int, int) { return 80, 24 }})
	frame := regexp.MustCompile(`probing +\d+% [^\n]*\n  slowest: gpu0007 \(connect, 1m\d+s\), gpu0900 \(connect, \d+s\)\n  \d+ failed: gpu\[0001-0006,0008-0899,0901-1\d+\]`)
	if !frame.MatchString(out) {
		t.Errorf("no such frame; the last: %q", out[max(0, len(out)-600):])
	}
	for line := range strings.SplitSeq(out, "\n") {
		if _, shown, ok := strings.Cut(line, "\x1b[K"); ok && !strings.Contains(shown, "\x1b") && len([]rune(shown)) > 79 {
			t.Errorf("wider than the terminal: %q", shown)
		}
	}
	if !strings.HasSuffix(out, "\n") || !strings.Contains(out, "2000 of 2000 nodes; 2000 failed: gpu[0001-2000]\n") {
		t.Errorf("the end is %q", out[max(0, len(out)-600):])
	}
}

// TestWatchingEndsWithItsNodes: an interrupt in the middle leaves no goroutine,
// and the bar says how far it came.
func TestWatchingEndsWithItsNodes(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		console := ui.New(&out, ui.Options{})
		opt := fleet.Options{Reporter: console, Dialer: deaf{}, Forks: 2}
		for i := range 10 {
			opt.Hosts = append(opt.Hosts, inventory.Host{Name: fmt.Sprint("gpu", i)})
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(4*time.Second, func() { cancel(errors.New("interrupted by the test")) })
		f := fleet.New(opt)
		f.ConnectAndRun(ctx, "probing", noSteps(f), nil)
		if err := f.Abandon(ctx); err == nil || f.Nodes[9].Err == nil {
			t.Error("no error")
		}
		console.Close()
	})
	if want := regexp.MustCompile(`^probing: \d+% in 4\.0s  6 of 10 nodes; 4 failed: gpu\[0-3\]\n$`); !want.MatchString(out.String()) {
		t.Errorf("%q", out.String())
	}
}
