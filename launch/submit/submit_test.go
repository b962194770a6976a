package submit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
)

func TestNoSlurm(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := Slurm{}.Test(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), "sbatch not found on PATH") || !strings.Contains(fault.Hint(err), "login node") {
		t.Errorf("%v, hint %q", err, fault.Hint(err))
	}
}

// A line of scontrol's is read whole, with the spaces in paths.
func TestParseState(t *testing.T) {
	const line = "JobId=12 JobName=bad UserId=root(0) GroupId=root(0) Priority=1 JobState=FAILED Reason=NonZeroExitCode Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 ExitCode=3:9 " +
		"NodeList=n[1-3] BatchHost=n1 NumNodes=3 Command=/home/a b/x.sh WorkDir=/home/a b StdErr=/home/a b/x-12.out StdIn=/dev/null StdOut=/home/a b/x-12.out Power="
	got, err := parseState("12", line)
	want := State{
		ID: "12", Name: "FAILED", Reason: "NonZeroExitCode", Nodes: "n[1-3]", BatchHost: "n1",
		Output: "/home/a b/x-12.out", Code: 3, Signal: 9, Restarts: 2,
	}
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := parseState("13", line); err == nil {
		t.Error("another job's state is taken")
	}
}

func TestBlamed(t *testing.T) {
	for line, want := range map[string]Blame{
		"srun: error: n2: task 1: Exited with exit code 3":                            {"n2", "task 1: Exited with exit code 3"},
		"srun: error: n[1-2],gpu-3: tasks 0-2: Killed":                                {"n[1-2],gpu-3", "tasks 0-2: Killed"},
		"srun: error: Node failure on n3":                                             {"n3", "Node failure"},
		"0: srun: error: n2: task 1: Exited with exit code 3":                         {},
		"slurmstepd: error: *** STEP 2.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***":  {},
		"srun: error: Unable to create step for job 3: Requested node is unavailable": {},
		"srun: error: n2; rm: task 1: Exited with exit code 3":                        {},
	} {
		if got, _ := parseBlame(line); got != want {
			t.Errorf("%s: %+v", line, got)
		}
	}
}

// Output is passed on in whole lines, safe for a terminal. If the job starts again, it begins
// anew.
func TestOutput(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.out")
	var got strings.Builder
	o := output{name: file, to: &got}
	add := func(text string, flags int) {
		f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|flags, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if err := o.copyNew(); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.copyNew(); err != nil {
		t.Fatal(err)
	}
	add("one\ntw", os.O_APPEND)
	add("o\x1b[2J\nsrun: error: n2: task 1: Killed\nsrun: error: n3: task 2: Killed\n", os.O_APPEND)
	add("again", os.O_TRUNC)
	if err := o.close(); err != nil {
		t.Fatal(err)
	}
	if want := "one\ntwo\nsrun: error: n2: task 1: Killed\nsrun: error: n3: task 2: Killed\nagain\n"; got.String() != want {
		t.Errorf("%q", got.String())
	}
	if o.blame == nil || o.blame.Nodes != "n2" {
		t.Errorf("%+v", o.blame)
	}
}

func TestEndedSaysWhere(t *testing.T) {
	st := State{ID: "12", Name: "FAILED", Nodes: "n[1-3]", Code: 3}
	for want, e := range map[string]Result{
		"job 12 FAILED after 2.0s on n2 (task 1: Killed): exit code 3": {st, Blame{"n2", "task 1: Killed"}, 2 * time.Second, ""},
		"job 12 FAILED after 2.0s on n[1-3]: exit code 3":              {st, Blame{}, 2 * time.Second, ""},
		"job 12 TIMEOUT after 2.0s on n1: exit code 0, signal 15":      {State{ID: "12", Name: "TIMEOUT", Nodes: "n1", Signal: 15}, Blame{}, 2 * time.Second, ""},
	} {
		if e.String() != want {
			t.Errorf("%s, want %s", e, want)
		}
	}
}
