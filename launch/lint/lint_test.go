package lint_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/launch/lint"
)

var update = flag.Bool("update", false, "rewrite what the tests compare with")

// check returns the findings of a script as lines.
func check(t *testing.T, name string, text []byte) (found []lint.Finding, lines string) {
	t.Helper()
	found, _, err := lint.Check(name, bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var out strings.Builder
	for _, f := range found {
		fmt.Fprintf(&out, "%s: %s: [%s] %s\n", f.Position, f.Severity, f.Rule, f.Message)
	}
	return found, out.String()
}

// alarms reports whether there is a finding of a rule, or an error or a warning. Short scripts ask for no GPUs.
func alarms(found []lint.Finding, rule string) bool {
	return slices.ContainsFunc(found, func(f lint.Finding) bool {
		return f.Severity != lint.Note && f.Rule != "no-gpus" || f.Rule == rule
	})
}

// withoutHabit leaves out the findings that most short scripts get, except where they are the subject.
func withoutHabit(lines, rule string) string {
	var kept strings.Builder
	for line := range strings.Lines(lines) {
		habit := func(id string) bool { return rule != id && strings.Contains(line, "["+id+"]") }
		if !habit("srun-keeps-running") && !habit("no-gpus") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// golden compares the last file of an archive, called want, with got.
func golden(t *testing.T, path string, archive *txtar.Archive, got string) {
	t.Helper()
	i := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return f.Name == "want" })
	if *update {
		if i >= 0 {
			archive.Files = slices.Delete(archive.Files, i, i+1)
		}
		archive.Files = append(archive.Files, txtar.File{Name: "want", Data: []byte(got)})
		if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if i < 0 {
		t.Fatalf("%s: no file want; -update makes it", path)
	}
	if want := string(archive.Files[i].Data); got != want {
		t.Errorf("%s: found\n%swant\n%s", path, got, want)
	}
}

// Every rule has scripts that show its mistake and nothing else, and others
// that come near and are right.
func TestRules(t *testing.T) {
	for _, rule := range lint.Rules() {
		t.Run(rule.ID, func(t *testing.T) {
			path := filepath.Join("testdata", "rules", rule.ID+".txtar")
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var all strings.Builder
			bad, good := 0, 0
			for _, file := range archive.Files {
				switch {
				case strings.HasPrefix(file.Name, "bad"):
					bad++
					found, lines := check(t, file.Name, file.Data)
					all.WriteString(withoutHabit(lines, rule.ID))
					if !slices.ContainsFunc(found, func(f lint.Finding) bool { return f.Rule == rule.ID }) {
						t.Errorf("%s: not found", file.Name)
					}
				case strings.HasPrefix(file.Name, "good"):
					good++
					if found, lines := check(t, file.Name, file.Data); alarms(found, rule.ID) {
						t.Errorf("%s: a false alarm:\n%s", file.Name, lines)
					}
				case file.Name != "want":
					t.Errorf("%s is neither bad nor good", file.Name)
				}
			}
			if bad == 0 || good == 0 {
				t.Errorf("%d scripts show the mistake, %d come near it", bad, good)
			}
			golden(t, path, archive, all.String())
		})
	}
	files, err := filepath.Glob(filepath.Join("testdata", "rules", "*.txtar"))
	if err != nil || len(files) != len(lint.Rules()) {
		t.Errorf("%d files for %d rules (%v)", len(files), len(lint.Rules()), err)
	}
}

// Correct scripts of the shapes that public templates have are silent: launchers in strings and
// arrays, functions, containers, Ray.
func TestTemplates(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "templates", "*.sh"))
	if err != nil || len(files) < 10 {
		t.Fatalf("%d templates (%v)", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if found, lines := check(t, filepath.Base(file), text); alarms(found, "") {
			t.Errorf("a false alarm:\n%s", lines)
		}
	}
}

// What dsbuild itself renders is silent, but for what its user asked for.
func TestOwnRenderings(t *testing.T) {
	asked := map[string][]string{ // by the folder of the rendering
		"slurm-all":             {"fixed-port", "nccl-debug-always"},
		"slurm-workers-elastic": {"fixed-port", "rdzv-id-constant"},
		"jax-slurm-procs":       {"nccl-debug-always"},
		"slurm-cpu":             {"no-gpus"},
		"aistation-elastic":     {"nccl-debug-always"},
	}
	scripts := 0
	err := filepath.WalkDir("../testdata/golden", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !slices.Contains([]string{".sh", ".sbatch"}, filepath.Ext(path)) {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		scripts++
		found, _ := check(t, path, text)
		for _, f := range found {
			if !slices.Contains(asked[filepath.Base(filepath.Dir(path))], f.Rule) {
				t.Errorf("%s: [%s] %s\n%s", f.Position, f.Rule, f.Message, f.Excerpt)
			}
		}
		return nil
	})
	if err != nil || scripts < 20 {
		t.Errorf("%d renderings: %v", scripts, err)
	}
}

// The scripts of the guides that teams copy, with their mistakes.
func TestCopiedAround(t *testing.T) {
	path := filepath.Join("testdata", "copied.txtar")
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range archive.Files {
		if file.Name != "want" {
			_, lines := check(t, file.Name, file.Data)
			all.WriteString(withoutHabit(lines, ""))
		}
	}
	golden(t, path, archive, all.String())
}

// What is no shell script is said to be none, with the place.
func TestNotAScript(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"open.sh", "srun bash -c 'torchrun\n", "open.sh:1:14: unexpected EOF while looking for matching `''"},
		{"if.sh", "#!/bin/bash\nif true; then\n  ls\n", "if.sh:2:1: syntax error: unexpected end of file"},
		{"train.py", "#!/usr/bin/env python3\nimport torch\n", "train.py:1:1: not an sh or bash script: its first line specifies /usr/bin/env python3"},
		{"job.zsh", "#!/bin/zsh\nsrun hostname\n", "not an sh or bash script: its first line specifies /bin/zsh"},
		{"test.bats", "#!/usr/bin/env bats\n", "not an sh or bash script"},
		{"job.csh", "#!/bin/csh -f\n", "not an sh or bash script"},
		{"job.yaml", "run: |\n  torchrun --nnodes=2 train.py\n", "job.yaml: not an sh or bash script: no #! line"},
		{"job.fish", "torchrun train.py\n", "job.fish: not an sh or bash script: no #! line"},
		{"docker/Dockerfile", "CMD torchrun train.py\n", "Dockerfile: not an sh or bash script: no #! line"},
		{"train.bin", "\x7fELF\x00\x01", "train.bin: a binary file: not a launch script"},
		{"deep.sh", strings.Repeat("(", 5000), "nested more than"},
		{"large.sh", strings.Repeat("# 345678\n", 500000), "large.sh: larger than 1 MiB: not a launch script"},
	} {
		_, _, err := lint.Check(c.name, strings.NewReader(c.text))
		var wrong *lineerr.Error
		if !errors.As(err, &wrong) || wrong.ExitCode() != 2 || !strings.Contains(err.Error(), c.want) || wrong.Hint() == "" || strings.Contains(err.Error(), "not a launch script") && wrong.Problems[0].Excerpt != "" {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
}

// Columns are counted in characters, and a mark of the byte order is none.
func TestPositions(t *testing.T) {
	if _, lines := check(t, "x.yaml", []byte("#!/bin/bash\n# \xfc\ntorchrun --standalone train.py\n")); lines != "" {
		t.Errorf("a script in Latin-1 with a strange name: %s", lines)
	}
	found, _ := check(t, "x.sh", []byte("\ufeff# ä\necho ä ö; export NCCL_DEBUG=INFO\n"))
	if len(found) != 1 || found[0].Position.String() != "x.sh:2:18" || !strings.HasSuffix(found[0].Excerpt, "| "+strings.Repeat(" ", 17)+"^") {
		t.Errorf("%+v", found)
	}
}

// A comment silences its rule in the whole file.
func TestIgnore(t *testing.T) {
	const launch = "srun torchrun --nnodes=2 \\\n  --nproc-per-node=8 --rdzv-backend=c10d \\\n  --rdzv-id=1 --rdzv-endpoint=\"$HEAD:$PORT\" train.py"
	for _, c := range []struct {
		name, text string
		want       int
	}{
		{"nothing silenced", launch + "\n", 1},
		{"line before", "# dsbuild: ignore rdzv-id-constant\n" + launch + "\n", 0},
		{"with a reason", "# dsbuild: ignore rdzv-id-constant - one job at a time\n" + launch + "\n", 0},
		{"two rules", "# dsbuild: ignore fixed-port, rdzv-id-constant\n# and a remark\n\n" + launch + "\n", 0},
		{"behind", launch + " # dsbuild: ignore rdzv-id-constant\n", 0},
		{"another rule", "# dsbuild: ignore fixed-port\n" + launch + "\n", 1},
		{"somewhere else", "# dsbuild: ignore rdzv-id-constant\ntrue\n" + launch + "\n", 0},
		{"no comment", "echo '\n# dsbuild: ignore rdzv-id-constant'\n" + launch + "\n", 1},
		{"a line of Slurm", "#!/bin/bash\n#SBATCH --output=$HOME/x # dsbuild: ignore variable-in-sbatch-line\n", 0},
		{"before a line of Slurm", "#!/bin/bash\n# dsbuild: ignore variable-in-sbatch-line\n#SBATCH --output=$HOME/x\n", 0},
	} {
		found, lines := check(t, c.name, []byte(c.text))
		if len(found) != c.want {
			t.Errorf("%s: found\n%s", c.name, lines)
		}
	}
}

// Work grows with the size of a script, however hostile: twice the lines never take many
// times longer. Each of these scripts made one part of the work grow without end, or with
// the square of its lines.
func TestBounded(t *testing.T) {
	for name, text := range hostileScripts(1) {
		half := hostileScripts(2)[name]
		ratio := 0.0
		for range 5 { // another program may take the machine meanwhile
			small, large := timeOf(t, half), timeOf(t, text)
			// Below some milliseconds the fixed costs of a check decide.
			ratio = large.Seconds() / max(small.Seconds(), 0.02)
			if ratio < 6 {
				break
			}
		}
		if ratio >= 6 {
			t.Errorf("%s: %d bytes took %.1f times longer than %d", name, len(text), ratio, len(half))
		}
	}
}

// timeOf returns the time of a check, the shorter one of two.
func timeOf(t *testing.T, text string) time.Duration {
	t.Helper()
	shortest := time.Duration(math.MaxInt64)
	for range 2 {
		start := time.Now()
		if _, _, err := lint.Check("x.sh", strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		shortest = min(shortest, time.Since(start))
	}
	return shortest
}

// hostileScripts are scripts of a few lines, written many times; by is the part of it.
func hostileScripts(by int) map[string]string {
	repeat := func(text string, n int) string { return strings.Repeat(text, n/by) }
	var variables strings.Builder
	for i := range 9000 / by {
		fmt.Fprintf(&variables, "a%x=\n", i)
	}
	return map[string]string{
		"outputs of outputs":     "A=$(a)\n" + repeat("A=$(echo $A $A)\n", 34) + "srun $A\n",
		"assignments in calls":   "f() {\n" + repeat("A=\n", 38000) + "}\n" + repeat("f\n", 5000),
		"exports in calls":       "f() {\nexport " + repeat("A ", 40000) + "\n}\n" + repeat("f\n", 5000),
		"statements in calls":    "f() {\n" + repeat("((b));", 18000) + "\n}\n" + repeat("f\n", 5000),
		"loops in calls":         "f() {\n" + repeat("while ((a)); do ", 150) + repeat("((b));", 15000) + repeat(" done;", 150) + "\n}\n" + repeat("f\n", 5000),
		"variables and branches": variables.String() + repeat("if a=;then a=;fi\n", 4000),
		"variables and commands": variables.String() + repeat("pip install x\n", 3000),
		"builds":                 repeat("DS_A=\n", 8000) + repeat("pip install\n", 5000),
		"findings at one place":  "A=1\nbash -c 'B=$A" + repeat("$A", 1000) + `; C="$B $B $B $B $B $B $B $B $B $B"; ` + repeat("echo $C;", 300) + "'\n" + repeat("true\n", 10000),
		"findings in many lines": repeat("JAX_PLATFORM_NAME=\n", 6800),
		"launchers":              "#SBATCH --nodes=2\n" + repeat("srun torchrun x\n", 7000),
		"ranks":                  "#SBATCH --nodes=2\n" + repeat("torchrun --node-rank 1 --rdzv-backend=c10d x\n", 2800),
		"nodes":                  "#SBATCH --nodes=2 --nodelist=a[1-60000]\n" + repeat("MASTER_ADDR=a\n", 8000),
		"ignored names":          "# dsbuild: ignore " + repeat("xxxx ", 20000) + "\n",
		"ignored lines":          repeat("a #dsbuild: ignore x\n", 6000),
	}
}

// FuzzCheck: whatever the text, there is no panic, no endless work, and every
// place is in the file.
func FuzzCheck(f *testing.F) {
	for _, pattern := range []string{"testdata/rules/*.txtar", "testdata/*.txtar"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				f.Fatal(err)
			}
			for _, script := range archive.Files {
				f.Add(script.Data)
			}
		}
	}
	f.Add([]byte("A=aaaaaaaa; A=$A$A$A$A$A$A$A$A; A=$A$A$A$A$A$A$A$A; A=$A$A$A$A$A$A$A$A; A=$A$A$A$A$A$A$A$A; eval \"$A\""))
	f.Add([]byte("f() { f; f; g; }\ng() { f \"$@\" x; bash -c \"$*\"; }\nf\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		start := time.Now()
		found, _, err := lint.Check("x.sh", bytes.NewReader(text))
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%d bytes took %s", len(text), took)
		}
		if err != nil && found != nil {
			t.Error("both findings and an error")
		}
		lines := bytes.Count(text, []byte("\n")) + 1
		for _, one := range found {
			if p := one.Position; p.Line < 1 || p.Line > lines || p.Column < 1 || p.Column > len(text)+1 {
				t.Errorf("%v is not in the file", p)
			}
		}
	})
}
