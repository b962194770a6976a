package matrix

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// parse reads a file from memory.
func parse(path string, data []byte) (*File, error) {
	r := newReader(path)
	return r.read(r.Body(data))
}

func TestRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "wheels.yaml")
	text := `
defaults: {cpu: x86-64-v3, ops: [cpu_adam, utils]}
matrix:
  python: ["3.11", 3.10]
  torch: [2.15.0, 2.14.1]
  arch: ["8.0;9.0+PTX"]
exclude: [{python: "3.10", torch: 2.14.1}]
wheels:
  - {name: v100, gpu: V100}
  - {gpu: [H100, A100], ops: all, keep-debug: true}
`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := Read(file)
	if err != nil {
		t.Fatal(err)
	}
	ops, archs := []string{"cpu_adam", "utils"}, []string{"8.0;9.0+PTX"}
	at := func(line, column int) Position { return Position{File: file, Line: line, Column: column} }
	want := []Entry{
		{Name: "python=3.11,torch=2.15.0", Position: at(4, 12), Python: "3.11", Torch: "2.15.0", Archs: archs, Ops: ops, CPU: "x86-64-v3"},
		{Name: "python=3.11,torch=2.14.1", Position: at(4, 12), Python: "3.11", Torch: "2.14.1", Archs: archs, Ops: ops, CPU: "x86-64-v3"},
		{Name: "python=3.10,torch=2.15.0", Position: at(4, 20), Python: "3.10", Torch: "2.15.0", Archs: archs, Ops: ops, CPU: "x86-64-v3"},
		{Name: "v100", Position: at(9, 5), GPUs: []string{"V100"}, Ops: ops, CPU: "x86-64-v3"},
		{Name: "gpu=H100+A100,ops=all,keep-debug=true", Position: at(10, 5), GPUs: []string{"H100", "A100"}, Ops: []string{"all"}, CPU: "x86-64-v3", KeepDebug: true},
	}
	if at := f.Entries[1].Place("torch"); at.Line != 5 || at.Column != 19 || f.Entries[1].Place("driver") != f.Entries[1].Position {
		t.Errorf("the torch of the second entry is at %s", at)
	}
	for i := range f.Entries {
		f.Entries[i].places = nil
	}
	if !reflect.DeepEqual(f.Entries, want) {
		t.Errorf("%+v\nwant\n%+v", f.Entries, want)
	}
}

// What an entry says about GPUs takes the place of what the defaults say, in
// either of the two words there are for it.
func TestEntryReplacesArchByGPU(t *testing.T) {
	f, err := parse("m", []byte("defaults: {arch: 8.0}\nwheels: [{gpu: V100}, {name: a, ops: utils}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if e := f.Entries[0]; e.Archs != nil || e.GPUs[0] != "V100" {
		t.Errorf("%+v", e)
	}
	if e := f.Entries[1]; e.GPUs != nil || e.Archs[0] != "8.0" {
		t.Errorf("%+v", e)
	}
}

func TestMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"":                                                 "m:1:1: the matrix is empty",
		"defaults: {cpu: x86-64-v3}":                       "m:1:1: the file lists no wheels",
		"wheels: []":                                       "m:1:9: wheels is empty",
		"wheels: [{arhc: 8.0}]":                            "m:1:11: unknown key \"arhc\" in an entry of wheels\n    1 | wheels: [{arhc: 8.0}]\n      |           ^",
		"wheel: [{arch: 8.0}]":                             "m:1:1: unknown key \"wheel\" in the matrix file",
		"wheels: {arch: 8.0}":                              "m:1:9: wheels must be a list, but this is a mapping",
		"wheels: [{arch: {a: 1}}]":                         "m:1:17: arch must be a text or a list of texts, but this is a mapping",
		"wheels: [{torch: [2.15.0]}]":                      "m:1:18: torch must be a text, but this is a list",
		"wheels: [{torch: }]":                              "torch must be a text, but this is nothing",
		"wheels: [{keep-debug: maybe}]":                    "m:1:23: keep-debug must be true or false, but this is a text",
		"wheels: [{arch: 8.0, gpu: A100}]":                 "arch and gpu in an entry of wheels mean the same",
		"wheels: [{arch: 8.0}, {arch: 8.0}]":               "m:1:23: a second entry with the name \"arch=8.0\"; the first is at m:1:10",
		"wheels: [{arch: &a 8.0}]":                         "an anchor or alias, which is not supported",
		"wheels: [{torch: \"a\\nb\"}]":                     "torch must be one line of text",
		"matrix: {python: []}":                             "m:1:18: python is empty",
		"matrix: {name: [a]}":                              "m:1:10: unknown key \"name\" in matrix",
		"matrix: {python: 3.11}":                           "m:1:18: python must be a list, but this is a decimal number",
		"matrix: {arch: [7.0], gpu: [H100]}":               "arch and gpu both say",
		"exclude: [{python: 3.11}]":                        "exclude needs a matrix",
		"matrix: {arch: [8.0]}\nexclude: [{arch: 9.0}]":    "m:2:11: this excludes nothing",
		"matrix: {arch: [8.0]}\nexclude: [{arch: 8.0}]":    "m:1:1: the matrix is empty: exclude removes all of it",
		"matrix: {arch: [8.0]}\nexclude: [{torch: 2.0.0}]": "m:2:12: unknown key \"torch\" in exclude",
		"matrix: {arch: [8.0]}\nexclude: [{}]":             "would exclude everything",
		"wheels: [{arch: 8.0}\n":                           "m:1:9: ",
		"a: 1\n---\nb: 2\n":                                "a second YAML document",
		"wheels: " + strings.Repeat("[", 50):               "nested too deeply",
		"matrix: {arch: [" + strings.Repeat("a,", 40) + "], ops: [" + strings.Repeat("b,", 40) + "]}": "more than 1000 wheels",
	} {
		_, err := parse("m", []byte(text))
		var wrong *Error
		if !errors.As(err, &wrong) || wrong.ExitCode() != 2 || !strings.Contains(err.Error(), want) {
			t.Errorf("%q:\n%v\nwant\n%s", text, err, want)
		}
	}
}

// All that is wrong is named at once, in the order of the file.
func TestAllMistakes(t *testing.T) {
	_, err := parse("m", []byte("wheels:\n  - {tourch: 2.15.0}\n  - {arch: [[8.0]]}\nmatrix: {pyton: [3.11]}\n"))
	for _, want := range []string{"m:2:6: ", "did you mean \"torch\"?", "m:3:13: ", "m:4:10: ", "did you mean \"python\"?"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in\n%v", want, err)
		}
	}
}

func TestReadMissing(t *testing.T) {
	_, err := Read(filepath.Join(t.TempDir(), "no.yaml"))
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "cannot read the matrix") {
		t.Error(err)
	}
}

// Whatever a file holds, it is entries with names of their own, or a mistake.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		"wheels: [{arch: 8.0}]", "defaults: {cpu: x86-64-v3}\nmatrix: {python: [3.11, 3.12], gpu: [[A100, H100], V100]}\nexclude:\n- {python: 3.11, gpu: V100}\n",
		"wheels:\n- name: a\n  ops: [x]\n- keep-debug: true\n", "a: *b", "? x\n: y", "wheels: [{arch: !!int 8}]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := parse("m", data)
		if err != nil {
			var wrong *Error
			if !errors.As(err, &wrong) || len(wrong.Problems) == 0 {
				t.Fatalf("%#v", err)
			}
			return
		}
		names := map[string]bool{}
		for _, e := range file.Entries {
			if e.Name == "" || names[e.Name] || e.Position.Line < 1 {
				t.Errorf("%+v", e)
			}
			names[e.Name] = true
		}
		if len(names) == 0 {
			t.Error("no entry and no mistake")
		}
	})
}
