package slurm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// fakePrograms puts programs into PATH that have these texts as scripts. Each notes its arguments.
// It returns the folder with the notes.
func fakePrograms(t *testing.T, scripts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range scripts {
		script := "#!/bin/bash\necho \"$@\" >>" + filepath.Join(dir, name+".args") + "\n" + text + "\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return dir
}

// lines is a script that prints a text.
func lines(text string) string { return "cat <<'EOF'\n" + text + "\nEOF" }

const twoPartitions = `gpu01|gpu*|up|idle|gpu:8|(null)|4096|none
gpu02|gpu*|up|idle|gpu:8|(null)|4096|none
gpu03|gpu*|up|down*|gpu:8|(null)|4096|broken
cpu01|cpu|up|idle|(null)|(null)|1|none`

// GPUs are counted and named, whatever their type looks like.
func TestGPUsOfNode(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]struct {
		count int
		types string
	}{
		"(null)": {0, ""}, "gpu": {0, ""}, "gpu:8": {8, ""}, "gpu:a100:8(S:0-1,3)": {8, "a100"}, "lustre:1,gpu:2": {2, ""},
		"gpu:1g.5gb:7": {7, "1g.5gb"}, "gpu:a100_3g.20gb:2,gpu:1g.5gb:1": {3, "a100_3g.20gb 1g.5gb"}, "gpu:tesla:no_consume:4": {4, "tesla"},
		"gpu:a100:4,gpu:a100:4": {8, "a100"}, "mygpu:4": {0, ""}, "gpu:99999999999999999999": {0, ""}, "gpu:many": {0, ""},
	} {
		if count, types := gpus(list); count != want.count || strings.Join(types, " ") != want.types {
			t.Errorf("%s: %d %v, want %+v", list, count, types, want)
		}
	}
}

// Wrong settings of a job end with exit code 2 and a hint, before dsbuild asks for any node.
func TestSettingsAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		nodes      []string
		partition  string
		sinfo      string
		sbatch     string
		text, hint string
	}{
		"fine":              {[]string{"gpu01", "cpu01"}, "", lines(twoPartitions), "", "", ""},
		"unknown node":      {[]string{"gpu01", "gpu07", "gpu08"}, "", lines(twoPartitions), "", "gpu[07-08]: unknown to Slurm", "list them: sinfo --Node"},
		"no such partition": {[]string{"gpu01"}, "big", "case \"$*\" in *big*) ;; *) " + lines(twoPartitions) + "\nesac", "", "no nodes in Slurm partition big", "list the partitions: sinfo"},
		"another partition": {
			[]string{"gpu01"},
			"cpu", "case \"$*\" in *partition=cpu*) " + lines("cpu01|cpu|up|idle|(null)|(null)|1|none") + "\n;; *) " + lines(twoPartitions) + "\nesac", "",
			"gpu01: not in partition cpu", "omit --partition",
		},
		"unknown in a partition": {
			[]string{"gpu09"}, "cpu", lines(twoPartitions), "", "gpu09: unknown to Slurm", "NodeName",
		},
		"refused":     {[]string{"gpu01"}, "", lines(twoPartitions), "echo 'sbatch: error: Invalid account' >&2; exit 1", "job rejected by Slurm: sbatch: error: Invalid account", "sacctmgr"},
		"no answer":   {[]string{"gpu01"}, "", "echo 'slurm_load_node: Unable to contact\x1b[2J slurm controller' >&2; exit 1", "", "cannot list Slurm nodes: slurm_load_node: Unable to contact slurm controller", "login node"},
		"odd answer":  {[]string{"gpu01"}, "", "echo hello", "", `unexpected output of sinfo: "hello"`, ""},
		"only a word": {[]string{"gpu01"}, "", "echo 'sinfo: error: no such partition' >&2", "", "cannot list Slurm nodes: sinfo: error: no such partition", ""},
	} {
		dir := fakePrograms(t, map[string]string{"sinfo": c.sinfo, "sbatch": c.sbatch})
		d, err := New(t.Context(), Options{Nodes: c.nodes, Partition: c.partition, Account: "team", Time: "10", More: []string{"--gres=gpu:1"}})
		if c.text == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			d.Close()
			args, _ := os.ReadFile(filepath.Join(dir, "sbatch.args")) //nolint:errcheck // compared
			want := "--test-only --wrap=true --mem=2048M --gres=gpu:1 --job-name=dsbuild --partition=gpu --nodes=1-1 --cpus-per-task=1 --no-kill --exclude=gpu[02-03] --account=team --time=10\n" +
				"--test-only --wrap=true --gres=gpu:1 --job-name=dsbuild --partition=cpu --nodes=1-1 --cpus-per-task=1 --no-kill --account=team --time=10\n"
			if string(args) != want {
				t.Errorf("%s: sbatch\n%swant\n%s", name, args, want)
			}
			continue
		}
		if err == nil || !strings.HasPrefix(err.Error(), c.text) || fault.ExitCode(err) != 2 || !strings.Contains(fault.Hint(err), c.hint) {
			t.Errorf("%s: %v, code %d, hint %q", name, err, fault.ExitCode(err), fault.Hint(err))
		}
	}
	if err := noNodes(""); err.Error() != "no default partition in Slurm" || fault.ExitCode(err) != 2 {
		t.Error(err)
	}
}

// The state of a job comes with the reason that Slurm gives for it.
func TestStateOfJob(t *testing.T) {
	for answer, want := range map[string][2]string{"PENDING|Resources": {"PENDING", "Resources"}, "RUNNING|None": {"RUNNING", ""}, "": {"", ""}} {
		fakePrograms(t, map[string]string{"squeue": lines(answer)})
		if state, reason, err := stateOf(t.Context(), "12"); err != nil || state != want[0] || reason != want[1] {
			t.Errorf("%q: %q %q %v", answer, state, reason, err)
		}
	}
}

// A program's failure is told in its own words, bounded and safe for a terminal; the end of the
// context is told as such.
func TestProgramFailures(t *testing.T) {
	fakePrograms(t, map[string]string{"quiet": "exit 3", "loud": "echo out; echo 'x\x1b[31my' >&2; exit 1", "long": "head -c 100000 /dev/zero | tr '\\0' a; exit 1", "slow": "exec sleep 60"})
	for name, want := range map[string]string{"quiet": "quiet: exit status 3", "loud": "xy\nout", "missing-program": "missing-program not found on PATH"} {
		_, _, err := Program{Name: name}.Output(t.Context())
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := (Program{Name: "long"}).Output(t.Context()); err == nil || len(err.Error()) > complaintMost+10 || !strings.HasPrefix(err.Error(), "...a") {
		t.Errorf("%.100v", err)
	}
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stopped)
	if _, _, err := (Program{Name: "slow"}).Output(ctx); !errors.Is(err, stopped) {
		t.Error(err)
	}
}

// What a program writes on a node is passed on up to the mark; its status counts only if it is whole.
func TestMarkedOutput(t *testing.T) {
	t.Parallel()
	const mark = "dsbuild-end-0123"
	for text, want := range map[string]struct {
		out  string
		code int
		seen bool
	}{
		"hello\n" + mark + " 7\n":                  {"hello\n", 7, true},
		mark + " 0\nslurmstepd: error: oom_kill\n": {"", 0, true},
		"hello\n":             {"hello\n", 0, false},
		"hello" + mark + " 1": {"hello", 1, false},
		mark + " x\n":         {"", 0, false},
		strings.Repeat("a", 3*keep) + mark + " 3\n":                     {strings.Repeat("a", 3*keep), 3, true},
		mark + " 5\n" + strings.Repeat("s", keep-len(mark)-len("X5\n")): {"", 5, true},
	} {
		for _, size := range []int{1, 7, len(text)} { // of each part that arrives
			var out bytes.Buffer
			m := &marked{to: &out, mark: mark}
			for part := range slices.Chunk([]byte(text), size) {
				if n, err := m.Write(part); n != len(part) || err != nil {
					t.Fatal(n, err)
				}
			}
			m.end()
			code, seen := m.status()
			if out.String() != want.out || seen != want.seen || seen && code != want.code {
				t.Errorf("%.40q in parts of %d: %.40q, %d %v", text, size, out.String(), code, seen)
			}
		}
	}
	m := &marked{mark: mark}
	fmt.Fprintf(m, "%s told\n", mark)
	if !m.told() || m.after() != " told\n" {
		t.Errorf("told %v, after %q", m.told(), m.after())
	}
}

// The result of a program is its status, unless Slurm ended the step or the node was lost.
func TestVerdictOfStep(t *testing.T) {
	t.Parallel()
	const mark = "dsbuild-end-0123"
	for name, c := range map[string]struct {
		errs, own string
		err       error
		over      string // why the job ended; "": it goes on
		text      string
		hint      string
	}{
		"well":          {mark + " 0\n", "", nil, "", "", ""},
		"status":        {mark + " 7\n", "", errors.New("exit status 7"), "", (&remote.ExitError{Code: 7}).Error(), ""},
		"out of memory": {mark + " 137\nslurmstepd: error: Detected 1 oom_kill event", "", nil, "", (&remote.ExitError{Code: 137}).Error() + ": memory limit of the job exceeded", "--salloc=--mem=8G"},
		"node failed":   {"", "srun: error: Node failure on gpu01", errors.New("exit status 1"), "", "while running a command: node failure reported by Slurm", "scontrol show node gpu01"},
		"srun's words":  {"", "srun: error: first\nsrun: error: Unable to confirm allocation", errors.New("exit status 1"), "", "srun: Unable to confirm allocation", "rerun the command, which is safe"},
		"no words":      {"", "", errors.New("exit status 1"), "", "srun: exit status 1", "scontrol"},
		"nothing":       {"", "", nil, "", "srun exited without a message", "scontrol"},
		"Slurm ended":   {mark + " 0\n", "srun: Force Terminated job 7", nil, "its time is over", "while running a command", ""},
		"job is over":   {"", "", errors.New("exit status 1"), "its time is over", "while running a command", ""},
	} {
		a := &allocation{job: "7", nodes: []string{"gpu01"}, ended: make(chan struct{}), why: c.over}
		if c.over != "" {
			close(a.ended)
		}
		p := &step{errs: &marked{mark: mark}, own: &remote.Tail{Most: complaintMost}, err: c.err}
		p.errs.Write([]byte(c.errs)) //nolint:errcheck // never fails
		p.own.Write([]byte(c.own))   //nolint:errcheck // never fails
		err := p.result(a, "gpu01")
		if (err == nil) != (c.text == "") || err != nil && (!strings.Contains(err.Error(), c.text) || !strings.Contains(fault.Hint(err), c.hint)) {
			t.Errorf("%s: %v, hint %q", name, err, fault.Hint(err))
		}
	}
}

// A node that dsbuild cannot get is unreachable, which a later run may change.
func TestNodesThatCannotBeHad(t *testing.T) {
	t.Parallel()
	d := &Dialer{opt: Options{Wait: 90 * time.Second}}
	busy, down := d.turnDown(errNotInTime), downError("gpu03", "down: broken")
	for _, err := range []error{busy, down, fmt.Errorf("connect: %w", down)} {
		if !errors.Is(err, remote.ErrDial) || fault.Hint(err) == "" {
			t.Errorf("%v", err)
		}
	}
	if busy.Error() != "allocation timed out after 1m30s" || !strings.Contains(fault.Hint(down), "scontrol show node gpu03") {
		t.Errorf("%v, %v", busy, fault.Hint(down))
	}
}
