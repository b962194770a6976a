package slurm

import (
	"errors"
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

// A node that Slurm did not give in time has what Slurm says of the job, and is unreachable, which a later
// run may change.
func TestReasonsOfNodesThatAreNotGiven(t *testing.T) {
	t.Parallel()
	d := &Dialer{opt: Options{Wait: time.Minute}}
	for err, want := range map[error]string{
		&notInTime{"Priority"}:                   "allocation timed out after 1m00s",
		&notInTime{"QOSMaxJobsPerUserLimit"}:     "allocation timed out after 1m00s (Slurm reason: QOSMaxJobsPerUserLimit)",
		&notInTime{}:                             "allocation timed out after 1m00s",
		errors.New("salloc: an invalid account"): "salloc: an invalid account",
	} {
		if got := d.turnDown(err); got.Error() != want || !errors.Is(got, remote.ErrDial) {
			t.Errorf("%v: %v, want %s", err, got, want)
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
	a.why = "time limit reached (raise it with --time)"
	close(a.ended)
	if _, _, err := d.lease(t.Context(), "gpu01", false); !errors.Is(err, remote.ErrLost) || !strings.Contains(err.Error(), "Slurm job 7 has ended: time limit reached") || fault.Hint(err) == "" {
		t.Errorf("%v, hint %q", err, fault.Hint(err))
	}
}
