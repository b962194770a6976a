package main

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/compat/evidence"
	"github.com/dsbuild/dsbuild/wheel"
)

// tree is a release with two ops: one of the CPU, and one with a kernel.
func tree(adam, kernel string) *evidence.Sources {
	builder := func(name, source string) string {
		return "class " + name + "Builder(OpBuilder):\n    NAME = '" + name + "'\n\n    def sources(self):\n        return ['" + source + "']\n"
	}
	return evidence.New(map[string]string{
		"csrc/adam.cpp": adam, "csrc/fused.cu": kernel,
		"op_builder/cpu_adam.py": builder("cpu_adam", "csrc/adam.cpp"), "op_builder/fused_adam.py": builder("fused_adam", "csrc/fused.cu"),
	})
}

// A fake of dsbuild and of the tests: whose libraries are as before, and which tests pass.
type fake struct {
	t        *testing.T
	same     string // the op whose library is the same in each release
	passes   []string
	fails    []string // parts of commands whose tests do not pass
	commands []string
	broken   string // a command that fails
}

func (f *fake) run(_ context.Context, environ []string, args ...string) (string, error) {
	line := strings.Join(append(slices.Clone(environ), args...), " ")
	f.commands = append(f.commands, line)
	if f.broken != "" && args[0] == "bin/dsbuild" && strings.Contains(line, f.broken) {
		return "", errors.New("exit status 1")
	}
	if args[0] == "bin/dsbuild" {
		release, ops := args[3], strings.Split(args[7], ",")
		files := map[string]string{}
		for _, op := range ops {
			files["deepspeed/ops/lib"+op+"_op.v2.so"], files["deepspeed/ops/lib"+op+"_op.v3.so"] = op, op+release
			if op == f.same {
				files["deepspeed/ops/lib"+op+"_op.v3.so"] = op
			}
		}
		writeZip(f.t, filepath.Join(args[len(args)-1], "deepspeed.whl"), files)
	}
	var said strings.Builder
	if slices.ContainsFunc(f.fails, func(part string) bool { return strings.Contains(line, part) }) {
		return "", errors.New("exit status 1")
	}
	for _, test := range f.passes {
		if name, _, _ := strings.Cut(test, "/"); !strings.Contains(line, "^"+name+"$") {
			continue
		}
		said.WriteString("    --- PASS: " + test + " (1.00s)\n")
	}
	return said.String(), nil
}

func TestProve(t *testing.T) {
	const adam, kernel = "int adam;\n", "int kernel;\n"
	for name, c := range map[string]struct {
		fake
		adam, kernel string
		changed      []string          // at last, on x86_64
		onArm        []string          // likewise
		outcomes     map[string]string // parts of them
		commands     int
		err          string
	}{
		"nothing has changed": {adam: "// another comment\n" + adam, kernel: kernel},
		"the same library": {
			fake: fake{same: "cpu_adam"}, adam: "int other;\n", kernel: kernel, onArm: []string{"cpu_adam"}, commands: 3,
			outcomes: map[string]string{"cpu_adam": "proven for x86_64: its library has the same bytes as in DeepSpeed 0.19.8"},
		},
		"tested": {
			fake: fake{passes: []string{"TestFullStable", "TestFullStableLaunches/fused_adam"}}, adam: adam, kernel: "int other;\n", commands: 5,
			outcomes: map[string]string{"fused_adam": "proven for x86_64 and aarch64: TestFullStable and TestFullStableLaunches/fused_adam"},
		},
		"one of two passes": {
			fake: fake{passes: []string{"TestFullStable"}}, adam: "int other;\n", kernel: "int other;\n", commands: 5,
			changed: []string{"fused_adam"}, onArm: []string{"fused_adam"},
			outcomes: map[string]string{"cpu_adam": "proven for x86_64 and aarch64: TestFullStable", "fused_adam": "not proven: TestFullStableLaunches/fused_adam did not pass"},
		},
		"one fails alone and together": {
			fake: fake{passes: []string{"TestFullStable", "TestFullStableLaunches/fused_adam"}, fails: []string{"OPS=cpu_adam,fused_adam,", "OPS=fused_adam,cpu_adam,"}},
			adam: "int other;\n", kernel: "int other;\n", commands: 6, changed: []string{"fused_adam"}, onArm: []string{"fused_adam"},
			outcomes: map[string]string{"cpu_adam": "proven for x86_64 and aarch64: TestFullStable", "fused_adam": "not proven: TestFullStable did not pass"},
		},
		"one cannot be built": {
			fake: fake{passes: []string{"TestFullStable"}, broken: "fused_adam"}, adam: "int other;\n", kernel: "int other;\n", commands: 6,
			changed: []string{"fused_adam"}, onArm: []string{"fused_adam"},
			outcomes: map[string]string{"cpu_adam": "proven for x86_64 and aarch64: TestFullStable", "fused_adam": "not proven: its wheel cannot be built, or fails the smoke test"},
		},
		"no wheel": {fake: fake{broken: "bin/dsbuild"}, adam: "int other;\n", kernel: kernel, commands: 2, err: "dsbuild wheel --deepspeed 0.19.9 --ops cpu_adam: exit status 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			tables, err := compat.NewTables()
			if err != nil {
				t.Fatal(err)
			}
			tables.Evidence = evidence.Table{Ops: map[string][]evidence.Proof{}, Files: map[string]evidence.ByMachine{}}
			for _, op := range []string{"cpu_adam", "fused_adam"} {
				if err := tables.Evidence.Accept(tree(adam, kernel), op, "0.19.8", evidence.Machines()...); err != nil {
					t.Fatal(err)
				}
			}
			before := map[string]string{evidenceFile: "before", deepSpeedFile: "{\n  \"releases\": [\n    {\"deepspeed\": \"0.19.8\", \"sha256\": \"8\"}\n  ]\n}\n"}
			for name, text := range before {
				if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			f := c.fake
			f.t = t
			p := prover{release{"0.19.9", "9", tree(c.adam, c.kernel)}, tables, f.run}
			outcomes, err := p.prove(t.Context(), sortedOps(tables, tables.Evidence.Judge(p.sources)[wheel.X86]))
			if len(f.commands) != c.commands {
				t.Errorf("%d commands, want %d:\n%s", len(f.commands), c.commands, strings.Join(f.commands, "\n"))
			}
			if c.err != "" {
				if err == nil || err.Error() != c.err || read(t, deepSpeedFile) != before[deepSpeedFile] || read(t, evidenceFile) != "before" {
					t.Errorf("%v, want %q and the files as before", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for op, o := range outcomes {
				if o.String() != c.outcomes[op] {
					t.Errorf("%s: %s, want %s", op, o, c.outcomes[op])
				}
			}
			if len(outcomes) != len(c.outcomes) {
				t.Errorf("%d outcomes, want %d", len(outcomes), len(c.outcomes))
			}
			compareRow(t, c.changed, c.onArm)
			if same := read(t, evidenceFile) == "before"; same != (c.commands == 0) {
				t.Errorf("evidence.json is as before: %t", same)
			}
		})
	}
}

// compareRow compares the row of the release with the ops that have changed for each machine.
func compareRow(t *testing.T, onX86, onArm []string) {
	t.Helper()
	var table struct{ Releases []compat.DeepSpeed }
	if err := json.Unmarshal([]byte(read(t, deepSpeedFile)), &table); err != nil {
		t.Fatal(err)
	}
	row := table.Releases[0]
	if row.Version != "0.19.9" || row.SHA256 != "9" || len(table.Releases) != 2 {
		t.Errorf("%+v; want 0.19.9 before 0.19.8", table.Releases)
	}
	for machine, want := range map[string][]string{wheel.X86: onX86, wheel.Arm: onArm} {
		if got := slices.Sorted(maps.Keys(row.Changed[machine])); !slices.Equal(got, want) {
			t.Errorf("%s: %v have changed, want %v", machine, got, want)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func writeZip(t *testing.T, name string, files map[string]string) {
	t.Helper()
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for name, text := range files {
		w, err := z.Create(name)
		if err == nil {
			_, err = w.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(z.Close(), os.WriteFile(name, out.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// The row of a release that the table has is replaced.
func TestSetRelease(t *testing.T) {
	const text = "{\n  \"releases\": [\n    {\"deepspeed\": \"0.19.8\", \"sha256\": \"8\"},\n    {\"deepspeed\": \"0.19.7\", \"sha256\": \"7\"}\n  ]\n}\n"
	for version, want := range map[string]string{
		"0.19.8": "{\n  \"releases\": [\n    {\"deepspeed\": \"0.19.8\", \"sha256\": \"x\", \"changed\": {}},\n    {\"deepspeed\": \"0.19.7\", \"sha256\": \"7\"}\n  ]\n}\n",
		"0.19.7": "{\n  \"releases\": [\n    {\"deepspeed\": \"0.19.8\", \"sha256\": \"8\"},\n    {\"deepspeed\": \"0.19.7\", \"sha256\": \"x\", \"changed\": {}}\n  ]\n}\n",
	} {
		got, err := setRelease(text, compat.DeepSpeed{Version: version, SHA256: "x", Changed: evidence.Changes{}})
		if err != nil || got != want {
			t.Errorf("%v\n%s\nwant\n%s", err, got, want)
		}
	}
}
