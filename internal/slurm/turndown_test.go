package slurm

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// waiting is a dialer that has asked for nodes and waits for Slurm's answer.
func waiting(t *testing.T, nodes ...string) *Dialer {
	t.Helper()
	d := &Dialer{opt: Options{Nodes: nodes, Wait: time.Minute, Report: ui.New(t.Output(), ui.Options{})}, places: make(map[string]*place)}
	for _, name := range nodes {
		d.places[name] = &place{name: name, asked: &request{done: make(chan struct{})}}
	}
	return d
}

// A node that Slurm did not give in time has the reason that helps: that it is down, who holds it, or
// what Slurm says of the job. All of them are unreachable, which a later run may change.
func TestReasonsOfNodesThatAreNotGiven(t *testing.T) {
	nodes := []string{"gpu01", "gpu02", "gpu03", "gpu04", "gpu05", "gpu06"}
	sinfo := lines(`gpu01|gpu*|up|down*|gpu:8|(null)|4096|disk | see 4711
gpu02|gpu*|up|idle*|gpu:8|(null)|4096|none
gpu03|gpu*|up|mixed|gpu:8|(null)|4096|none
gpu04|gpu*|up|allocated|gpu:8|(null)|4096|none
gpu05|gpu*|up|idle|gpu:8|(null)|4096|none`)
	// Job 11 is completing, and has given all its nodes back.
	squeue := lines("11|zoe||done\n12|alice|gpu[03-04]|train | big\n13|bob|gpu04|x")
	for name, c := range map[string]struct {
		sinfo, squeue string
		err           error
		want          [6]string
	}{
		"priority": {sinfo, squeue, &notInTime{"Priority"}, [6]string{
			"down: disk | see 4711", "it does not respond to Slurm", "busy (job 12 of alice: train | big), and did not become free within 1m00s",
			"busy (job 12 of alice: train | big; and 1 more), and did", "not allocated, and did", "not allocated, and did",
		}},
		"a limit": {sinfo, squeue, &notInTime{"QOSMaxJobsPerUserLimit"}, [6]string{
			"down: disk", "it does not", "busy (job 12 of alice: train | big) (Slurm says QOSMaxJobsPerUserLimit), and did", "busy (job 12", "not allocated (Slurm says QOSMaxJobsPerUserLimit), and did", "not allocated",
		}},
		"no lists": {"echo broken >&2; exit 1", "echo broken >&2; exit 1", &notInTime{}, [6]string{
			"not allocated, and did", "not allocated, and did", "not allocated", "not allocated", "not allocated", "not allocated",
		}},
		"refused": {sinfo, squeue, errors.New("salloc: error: Invalid account"), [6]string{
			"salloc: error: Invalid account", "salloc: error", "salloc: error", "salloc: error", "salloc: error", "salloc: error",
		}},
	} {
		fakePrograms(t, map[string]string{"sinfo": c.sinfo, "squeue": c.squeue})
		d := waiting(t, nodes...)
		asked := map[string]*request{}
		for name, p := range d.places {
			asked[name] = p.asked
		}
		d.turnDown(t.Context(), partition{name: "gpu"}, nodes, fmt.Errorf("asking: %w", c.err))
		for i, node := range nodes {
			select {
			case <-asked[node].done:
			default:
				t.Fatalf("%s: %s has no answer", name, node)
			}
			want := c.want[i]
			if name == "refused" {
				want = "asking: " + want
			}
			if err := asked[node].err; !errors.Is(err, remote.ErrDial) || !strings.HasPrefix(err.Error(), want) || name != "refused" && fault.Hint(err) == "" {
				t.Errorf("%s: %s: %v, hint %q; want %s", name, node, err, fault.Hint(err), want)
			}
			if d.places[node].asked != nil || d.places[node].alloc != nil {
				t.Errorf("%s: %s still waits", name, node)
			}
		}
	}
}

// The line of an allocation is found behind whatever a login script prints; without it there is none.
func TestReportOfAllocation(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]string{
		"dsbuild-allocation 7 gpu[01-02]\n":                                "7 gpu[01-02]",
		"Welcome!\n\ndsbuild-allocation 7 gpu01\ndsbuild-allocation 8 x\n": "7 gpu01",
		"see dsbuild-allocation 7 gpu01\n":                                 "",
		"dsbuild-allocation 7 gpu01":                                       "7 gpu01",
		"dsbuild-allocation 7 " + strings.Repeat("gpu01,", 200_000):        "7 " + strings.Repeat("gpu01,", 200_000),
		"":     "",
		"\x00": "",
	} {
		if got := reportIn(strings.NewReader(said)); got != want {
			t.Errorf("%.60q: %.60q", said, got)
		}
	}
}

// An allocation answers the requests for its nodes, and no others; it keeps a node that nobody asked for
// until the job ends. After Close it is given back at once.
func TestGrantOfNodes(t *testing.T) {
	t.Parallel()
	d := waiting(t, "gpu01", "gpu02", "gpu03")
	d.life, d.end = t.Context(), func() {}
	d.places["gpu03"].asked = nil
	first, second := d.places["gpu01"].asked, d.places["gpu02"].asked
	a := &allocation{job: "7", nodes: []string{"gpu01", "gpu03", "other"}, ended: make(chan struct{})}
	d.grant(a)
	defer d.idle.Stop()
	select {
	case <-first.done:
	default:
		t.Error("gpu01 has no answer")
	}
	select {
	case <-second.done:
		t.Error("gpu02 has an answer")
	default:
	}
	if d.places["gpu01"].alloc != a || d.places["gpu03"].alloc != nil || first.err != nil || len(d.held) != 1 {
		t.Errorf("%+v", d.places)
	}
	got, done, err := d.lease(t.Context(), "gpu01", false)
	if err != nil || got != a {
		t.Fatal(err)
	}
	done()
	done() // a second call counts for nothing
	if d.active != 0 {
		t.Errorf("%d programs run", d.active)
	}
	// Once Slurm has ended the job, a program there fails, and says why.
	a.why = "its time limit ended (raise it with --time)"
	close(a.ended)
	if _, _, err := d.lease(t.Context(), "gpu01", false); !errors.Is(err, remote.ErrLost) || !strings.Contains(err.Error(), "job 7 has ended: its time limit ended") || fault.Hint(err) == "" {
		t.Errorf("%v, hint %q", err, fault.Hint(err))
	}
}
