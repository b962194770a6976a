package submit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// fakeSlurm puts programs into PATH that answer as Slurm's do: sbatch gives out the ids 1, 2, 3;
// scontrol writes its next answer of the job for each call, the last one for ever; scancel notes
// its words. A script's text "refuse" makes sbatch fail. It returns what dsbuild reports and the
// output of jobs.
type fakeSlurm struct {
	Slurm
	dir  string
	told bytes.Buffer
	log  bytes.Buffer
}

func newFakeSlurm(t *testing.T, answers map[string][]string) *fakeSlurm {
	t.Helper()
	f := &fakeSlurm{dir: t.TempDir()}
	for id, all := range answers {
		for i, answer := range all {
			if !strings.HasPrefix(answer, "error:") {
				answer = "JobId=" + id + " " + answer
			}
			f.write(t, fmt.Sprintf("%s.%d", id, i), answer)
		}
	}
	for name, text := range map[string]string{
		"sbatch": `script=$(cat); case $script in *refuse*) echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1 ;; *odd*) echo 'no number'; exit 0 ;; esac
case $1 in --test-only) echo 'sbatch: Job 9 to start at 2026-11-25T00:00:00 using 8 processors' >&2; exit 0 ;; esac
n=$(cat DIR/last 2>/dev/null || echo 0); n=$((n + 1)); echo $n >DIR/last; echo "$MASTER_ADDR" >DIR/env.$n
echo 'sbatch: warning: no memory is given' >&2; echo "$n;cluster"`,
		"scancel": "echo \"$@\" >>DIR/cancelled",
		"scontrol": `for id; do :; done
n=$(cat DIR/calls.$id 2>/dev/null || echo 0); echo $((n + 1)) >DIR/calls.$id
while ! [ -e DIR/$id.$n ]; do n=$((n - 1)); done
case $(cat DIR/$id.$n) in error:*) cat DIR/$id.$n >&2; exit 1 ;; esac
cat DIR/$id.$n`,
	} {
		f.write(t, name, "#!/bin/bash\n"+strings.ReplaceAll(text, "DIR", f.dir)+"\n")
	}
	t.Setenv("PATH", f.dir+":"+os.Getenv("PATH"))
	f.Slurm = Slurm{Report: ui.New(&f.told, ui.Options{}), Log: &f.log, Poll: time.Millisecond}
	return f
}

func (f *fakeSlurm) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// A job is followed from the queue to its end: each change is told once, and the output is copied.
func TestWatchFollowsJob(t *testing.T) {
	out := filepath.Join(t.TempDir(), "job.out")
	f := newFakeSlurm(t, map[string][]string{"7": {
		"JobState=PENDING Reason=Resources ExitCode=0:0",
		"JobState=PENDING Reason=Resources ExitCode=0:0",
		"error: slurm_load_jobs error: Unable to contact slurm controller",
		"JobState=PENDING Reason=Priority ExitCode=0:0",
		"JobState=RUNNING Reason=None NodeList=n[1-2] ExitCode=0:0 StdOut=" + out,
		"JobState=PENDING Reason=BeginTime Restarts=1 ExitCode=0:0 StdOut=" + out,
		"JobState=RUNNING Reason=None NodeList=n3 Restarts=1 ExitCode=0:0 StdOut=" + out,
		"JobState=FAILED Reason=NonZeroExitCode NodeList=n3 Restarts=1 ExitCode=3:0 StdOut=" + out,
	}})
	f.Report = &onNote{f.Report, func(text string) {
		if !strings.Contains(text, "running on n3") {
			return
		}
		if err := os.WriteFile(out, []byte("epoch 1\x1b[2J\nOSError: [Errno 28] No space left on device\nsrun: error: n3: task 0: Exited with exit code 3\nlast"), 0o600); err != nil {
			t.Error(err)
		}
	}}
	ended, err := f.Watch(t.Context(), "7")
	if err != nil || ended.Passed() || ended.Code != 3 || ended.Restarts != 1 || ended.Blame != (Blame{"n3", "task 0: Exited with exit code 3"}) {
		t.Fatalf("%v: %+v", err, ended)
	}
	if !strings.HasPrefix(ended.String(), "job 7 FAILED after ") || !strings.HasSuffix(ended.String(), " on n3 (task 0: Exited with exit code 3): exit code 3") {
		t.Error(ended)
	}
	if !strings.Contains(ended.Hint, "free disk space") || !strings.Contains(ended.Hint, "run 'dsbuild check inventory.yaml --output /shared/out'") {
		t.Errorf("hint %q", ended.Hint)
	}
	if want := "epoch 1\nOSError: [Errno 28] No space left on device\nsrun: error: n3: task 0: Exited with exit code 3\nlast\n"; f.log.String() != want {
		t.Errorf("output %q, want %q", f.log.String(), want)
	}
	for text, times := range map[string]int{
		"job 7 is pending: Resources": 1, "job 7 is pending: Priority": 1, "job 7: no answer from Slurm, retrying": 1, "Unable to contact": 1,
		"job 7 is running on n[1-2]; output: " + out: 1, "job 7 was requeued and restarts": 1,
		"job 7 is pending: BeginTime": 1, "job 7 is running on n3": 1,
	} {
		if got := strings.Count(f.told.String(), text); got != times {
			t.Errorf("%q is told %d times, want %d:\n%s", text, got, times, f.told.String())
		}
	}
}

// An output that lies on a node's own disk is named once the job has failed; a job that passed needs none.
func TestWatchWithoutOutput(t *testing.T) {
	f := newFakeSlurm(t, map[string][]string{
		"1": {"JobState=FAILED NodeList=n1 ExitCode=1:0 StdOut=/nowhere/1.out"},
		"2": {"JobState=COMPLETED NodeList=n1 ExitCode=0:0 StdOut=/nowhere/2.out"},
		"3": {"JobState=NODE_FAIL NodeList=n1 ExitCode=0:0"},
	})
	for _, id := range []string{"1", "2", "3"} {
		ended, err := f.Watch(t.Context(), id)
		if err != nil || ended.Passed() != (id == "2") {
			t.Errorf("%v: %+v", err, ended)
		}
	}
	if got := strings.Count(f.told.String(), "is not visible on this machine"); got != 1 || !strings.Contains(f.told.String(), "job 1: output file /nowhere/1.out is not visible") {
		t.Error(f.told.String())
	}
}

// dsbuild stops to watch if it is interrupted or if Slurm knows the job no more; the hint names only
// what dsbuild knows.
func TestWatchEndsBeforeJob(t *testing.T) {
	interrupted := errors.New("interrupted")
	for name, c := range map[string]struct {
		answers        []string
		interrupt      bool
		text, try, not string
	}{
		"at once": {[]string{"JobState=RUNNING NodeList=n1 ExitCode=0:0"}, true, "interrupted", "cancel it with 'scancel 7'", "output"},
		"running": {[]string{"JobState=RUNNING NodeList=n1 ExitCode=0:0 StdOut=/x/7.out"}, false, "interrupted", "output: /x/7.out", ""},
		"forgotten": {
			[]string{"JobState=RUNNING NodeList=n1 ExitCode=0:0 StdOut=/x/7.out", "error: slurm_load_jobs error: Invalid job id specified"},
			false,
			"job 7 not found", "see its result with: sacct -j 7; output: /x/7.out", "",
		},
		"never known": {[]string{"error: slurm_load_jobs error: Invalid job id specified"}, false, "job 7 not found", "see its result with: sacct -j 7", "output"},
	} {
		f := newFakeSlurm(t, map[string][]string{"7": c.answers})
		ctx, cancel := context.WithCancelCause(t.Context())
		if c.interrupt {
			cancel(interrupted)
		}
		f.Report = &onNote{f.Report, func(text string) {
			if name == "running" && strings.Contains(text, "running on") {
				cancel(interrupted)
			}
		}}
		_, err := f.Watch(ctx, "7")
		if try := fault.Hint(err); err == nil || !strings.Contains(err.Error(), c.text) || !strings.Contains(try, c.try) || c.not != "" && strings.Contains(try, c.not) {
			t.Errorf("%s: %v\nhint: %s", name, err, try)
		}
		cancel(nil)
	}
}

// onNote calls a function with each note.
type onNote struct {
	ui.Reporter
	call func(string)
}

func (o *onNote) Note(format string, args ...any) {
	o.Reporter.Note(format, args...)
	o.call(fmt.Sprintf(format, args...))
}

func TestSubmitReadsID(t *testing.T) {
	f := newFakeSlurm(t, nil)
	if id, err := f.Submit(t.Context(), []byte("#!/bin/bash\ntrue\n")); err != nil || id != "1" {
		t.Errorf("%q, %v", id, err)
	}
	if _, err := f.Submit(t.Context(), []byte("odd")); err == nil || !strings.Contains(err.Error(), `"no number", which is not a job ID`) {
		t.Error(err)
	}
	if _, err := f.Submit(t.Context(), []byte("refuse")); err == nil || !strings.Contains(err.Error(), "Invalid account") {
		t.Error(err)
	}
	if said, err := f.Test(t.Context(), []byte("true")); err != nil || said != "Job 9 to start at 2026-11-25T00:00:00 using 8 processors" {
		t.Errorf("%q, %v", said, err)
	}
	if _, err := f.Test(t.Context(), []byte("refuse")); err == nil || !strings.Contains(err.Error(), "job rejected by Slurm: ") {
		t.Error(err)
	}
}
