package deploy_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/inventory"
)

// TestDivide: what is in which group. A letter is what becomes of a node:
// installs, follows the last that installs, is left alone, refused, or waits.
func TestDivide(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ nodes, serial, want string }{
		{"iiiii", "", "00000"},
		{"iiiii", "2", "11223"},
		{"iiiii", "1,2", "12233"},
		{"iiiiiiiiii", "1,30%,100%", "1222333333"},
		{"iiii", "10%", "1234"},
		{"ilrii", "1", "10023"},
		{"iffif", "1", "11122"},
		{"iifi", "2", "1223"},
		{"iffii", "2", "11122"},
		{"wii", "1", "312"},
		{"wiiwi", "2", "31132"},
	} {
		var plan change.Decisions
		users := make([]node.Processes, len(c.nodes))
		leader := 0
		for i, letter := range c.nodes {
			p := &change.Decision{Name: fmt.Sprint("gpu", i), Leader: i, Action: map[rune]change.Action{'i': change.Install, 'w': change.Install, 'f': change.Shared, 'l': change.UpToDate, 'r': change.Refuse}[letter]}
			switch letter {
			case 'f':
				p.Leader = leader
			case 'i', 'w':
				leader = i
			}
			if letter == 'w' {
				users[i].InUse = []node.Process{{PID: 1}}
			}
			plan = append(plan, p)
		}
		plan.ApplyInUse(users, change.InUse{Wait: time.Hour})
		var serial fleet.Serial
		if c.serial != "" {
			var err error
			if serial, err = fleet.ParseSerial(c.serial); err != nil {
				t.Fatal(err)
			}
		}
		plan.AssignGroups(serial)
		got := ""
		for _, p := range plan {
			got += fmt.Sprint(p.Serial)
		}
		if got != c.want {
			t.Errorf("%s by %s: %s, want %s", c.nodes, c.serial, got, c.want)
		}
	}
}

func TestPlanSaysTheGroups(t *testing.T) {
	t.Parallel()
	var plan change.Decisions
	for range 20 {
		plan = append(plan, &change.Decision{Name: "gpu1", Action: change.Install})
	}
	details := func(int) (cells, why []string) { return nil, nil }
	plan.AssignGroups(fleet.Serial{{N: 1}, {N: 10}})
	var out strings.Builder
	if err := plan.Print(&out, nil, details); err != nil || !strings.HasSuffix(out.String(), "\n3 batches: 1, 10, 9 nodes\n") {
		t.Errorf("%v\n%s", err, out.String())
	}
	plan.AssignGroups(fleet.Serial{{N: 1}})
	out.Reset()
	if err := plan.Print(&out, nil, details); err != nil || !strings.HasSuffix(out.String(), "\n20 batches: 1, 1, 1, 1, 1, 1, 1, …, 1 nodes\n") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// several are nodes with environments of their own, and a deploy of a wheel to them.
func several(t *testing.T, n int) ([]environment, deploy.Options) {
	t.Helper()
	var all []environment
	var hosts []inventory.Host
	var servers []*sshtest.Server
	for i := range n {
		e := newEnvironment(t, "2.15.0")
		h, s := host(t, fmt.Sprint("gpu", i+1), e, sshtest.Options{})
		all, hosts, servers = append(all, e), append(hosts, h), append(servers, s)
	}
	return all, options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), servers, hosts...)
}

// spoiled makes every import of DeepSpeed fail in an environment.
func (e environment) spoil(t *testing.T) {
	t.Helper()
	e.write(t, "torch/__init__.py", "raise ImportError('libcudart.so.13: cannot open shared object file')\n")
}

func TestSerialChangesOneGroupAfterTheOther(t *testing.T) {
	t.Parallel()
	all, opt := several(t, 3)
	done := func(e environment) bool {
		_, err := os.Stat(e.own("journal.jsonl"))
		return err == nil
	}
	var mu sync.Mutex
	opt.Serial, opt.Forks = fleet.Serial{{N: 1}, {N: 2}}, 5
	opt.Dialer = &sshtest.CountingDialer{Dialer: opt.Dialer, Before: func(up remote.Upload) error {
		mu.Lock()
		defer mu.Unlock()
		group := 0
		for i, e := range all {
			if strings.HasPrefix(up.Path, e.dir) {
				group = (i + 1) / 2
			}
		}
		for i, e := range all {
			if (i+1)/2 < group && !done(e) {
				t.Errorf("group %d began before gpu%d was done", group+1, i+1)
			}
			if (i+1)/2 > group && done(e) {
				t.Errorf("gpu%d was done before group %d began", i+1, group+1)
			}
		}
		return nil
	}}
	r := run(t, context.Background(), opt)
	if r.Err() != nil {
		t.Fatal(r.Err())
	}
	var groups []int
	for _, n := range r.Nodes {
		groups = append(groups, n.Serial)
	}
	if !slices.Equal(groups, []int{1, 2, 2}) {
		t.Errorf("groups %v", groups)
	}
}

func TestSerialStopsAfterAGroupWithFailures(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	all, opt := several(t, 4)
	all[1].spoil(t)
	opt.Serial = fleet.Serial{{N: 1}, {N: 2}}
	r := run(t, context.Background(), opt)
	for i, want := range []report.Status{report.OK, report.Failed, report.OK, report.Skipped} {
		n := r.Nodes[i]
		if n.Status != want {
			t.Errorf("%s: %s, want %s", n.Name, n.Status, want)
		}
		if want == report.Skipped && (n.Error != "skipped: 1 of 2 nodes failed in batch 2 (gpu2)" || n.Hint == "" || n.Serial != 0) {
			t.Errorf("%s: %q, hint %q", n.Name, n.Error, n.Hint)
		}
	}
	// Where it is allowed, and also where a node cannot be reached at all, the next
	// group is begun: another one of a single node, for nothing is proven.
	opt.MaxFailures = func(failed, _ int) bool { return failed > 2 }
	opt.Hosts[0].Port = 1
	r = run(t, context.Background(), opt)
	for i, want := range []report.Status{report.Unreachable, report.Failed, report.OK, report.OK} {
		if n := r.Nodes[i]; n.Status != want {
			t.Errorf("%s: %s, want %s: %s", n.Name, n.Status, want, n.Error)
		}
	}
	if r.Nodes[1].Serial != 1 || r.Nodes[3].Serial != 2 {
		t.Errorf("groups %d and %d", r.Nodes[1].Serial, r.Nodes[3].Serial)
	}
}

// TestSerialGrowsOnlyAfterSuccess: a group of which all nodes turned out to be in
// use proves nothing. The next one is as small.
func TestSerialGrowsOnlyAfterSuccess(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	all, opt := several(t, 3)
	opt.Serial, opt.Forks = fleet.Serial{{N: 1}, {Percent: true, N: 100}}, 1
	opt.Dialer = &sshtest.CountingDialer{Dialer: opt.Dialer, Before: func(up remote.Upload) error {
		if strings.HasPrefix(up.Path, all[0].dir) {
			all[0].train(t)
		}
		return nil
	}}
	r := run(t, context.Background(), opt)
	for i, want := range []struct {
		status report.Status
		group  int
	}{{report.Refused, 1}, {report.OK, 2}, {report.OK, 3}} {
		if n := r.Nodes[i]; n.Status != want.status || n.Serial != want.group {
			t.Errorf("%s: %s in group %d, want %v", n.Name, n.Status, n.Serial, want)
		}
	}
}
