package nightly_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/release/nightly"
	"github.com/dsbuild/dsbuild/wheel"
)

func read(t *testing.T, text string) (nightly.Config, string, error) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "nightly.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := nightly.Read(file)
	return c, dir, err
}

func TestRead(t *testing.T) {
	c, dir, err := read(t, `
wheels:
  wheels:
    - {name: v100, gpu: V100}
    - {arch: ["8.0", "9.0"], ops: all, keep-debug: true}
    - {python: 3.10}
  defaults: {arch: 8.6, cpu: x86-64-v3, ops: [cpu_adam, utils]}
sources: [release, main, {name: fork, deepspeed: ../fork}]
dir: state
keep: 3
index: {dir: public, url: https://wheels.example.org/}
deploy: {inventory: inventory.yaml, canary: canary, source: main, forks: 8, verify: files}
`)
	if err != nil {
		t.Fatal(err)
	}
	ops := []string{"cpu_adam", "utils"}
	want := nightly.Config{
		Dir: filepath.Join(dir, "state"), Keep: 3,
		Entries: []nightly.Entry{
			{Name: "v100", Request: wheel.Request{GPUs: []string{"V100"}, CPU: "x86-64-v3", Ops: ops}},
			{Name: "arch=8.0+9.0,ops=all,keep-debug=true", Request: wheel.Request{Archs: []wheel.Arch{{Major: 8}, {Major: 9}}, CPU: "x86-64-v3", Ops: []string{"all"}, KeepDebug: true}},
			{Name: "python=3.10", Request: wheel.Request{Archs: []wheel.Arch{{Major: 8, Minor: 6}}, CPU: "x86-64-v3", Ops: ops, Python: "3.10"}},
		},
		Sources: []nightly.Source{{Name: "release"}, {Name: "main", DeepSpeed: "git+https://github.com/deepspeedai/DeepSpeed@master"}, {Name: "fork", DeepSpeed: filepath.Join(filepath.Dir(dir), "fork")}},
		Index:   &nightly.Index{Dir: filepath.Join(dir, "public"), URL: "https://wheels.example.org/"},
		Deploy:  &nightly.Deploy{Inventory: filepath.Join(dir, "inventory.yaml"), Source: "main", Canary: "canary", Flags: map[string]string{"forks": "8", "verify": "files"}},
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("%+v\nwant\n%+v", c, want)
	}
	c, dir, err = read(t, "wheels: {wheels: [{arch: 8.0}, {arch: 9.0}]}\n")
	if err != nil || len(c.Entries) != 2 || c.Dir != filepath.Join(dir, "nightly") || c.Keep != 7 || len(c.Sources) != 1 || c.Index != nil || c.Deploy != nil {
		t.Errorf("%v, %+v", err, c)
	}
}

func TestMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"":         "nightly.yaml:1:1: empty nightly file",
		"keep: 3":  "nightly.yaml:1:1: the file lists no wheels",
		"whels: x": "unknown key \"whels\" in the nightly file",

		"wheels: wheels.yaml":              "nightly.yaml:1:9: wheels must be a mapping (key: value), not a string",
		"wheels: {defaults: {arch: 8.0}}":  "nightly.yaml:1:1: the file lists no wheels",
		"wheels: {wheels: []}":             "add at least one entry",
		"wheels: {wheels: [{arhc: 8.0}]}":  "nightly.yaml:1:20: unknown key \"arhc\" in an entry of wheels",
		"wheels: {wheels: [{arch: [[]]}]}": "nightly.yaml:1:27: arch must be a string, not a list",
		"wheels: {wheels: [{arch: []}]}":   "nightly.yaml:1:26: arch is empty",
		"wheels: {wheels: [{name: ''}]}":   "nightly.yaml:1:26: name must be one line of text",

		"wheels: {defaults: {name: x}, wheels: [{arch: 8.0}]}": "nightly.yaml:1:21: unknown key \"name\" in defaults",
		"wheels: {wheels: [{keep-debug: 1}]}":                  "nightly.yaml:1:32: keep-debug must be true or false",
		"wheels: {wheels: [{deepspeed: 0.19.7}]}":              "nightly.yaml:1:20: unknown key \"deepspeed\" in an entry of wheels",
		"wheels: {wheels: [{arch: 8.0, gpu: A100}]}":           "nightly.yaml:1:36: arch and gpu in an entry of wheels are mutually exclusive",
		"wheels: {wheels: [{arch: 8.0}, {arch: 8.0}]}":         "nightly.yaml:1:32: duplicate entry name \"arch=8.0\"; first used at ",
		"wheels: {wheels: [{arch: 8.0, cpu: v9}]}":             "nightly.yaml:1:36: invalid value \"v9\" for cpu: want x86-64-v2 (SSE4.2), x86-64-v3 (AVX2), x86-64-v4 (AVX-512), armv8-a (aarch64) or native",
		"wheels: {wheels: [{machine: all}]}":                   "nightly.yaml:1:29: machine all: an entry is one wheel",
		"wheels: {wheels: [{arch: A100}]}":                     "did you mean gpu: A100?",
		"wheels: {wheels: [{gpu: V10O}]}":                      "did you mean V100?",
		"wheels: {wheels: [{ops: [utils, cpu_adm]}]}":          "nightly.yaml:1:25: unknown op \"cpu_adm\"",
		"wheels: {wheels: [{arch: 8.0, abi: stabel}]}":         "nightly.yaml:1:36: invalid value \"stabel\" for abi: want auto, stable or torch",

		"notify: {url: x}":                     "use the form notify: [PROGRAM, ARGUMENT]",
		"notify: []":                           "add at least one entry",
		"keep: 0":                              "nightly.yaml:1:7: keep must be a number of builds",
		"index: s3://wheels":                   "nightly.yaml:1:8: the index must be a local directory",
		"index: /etc/passwd":                   "nightly.yaml:1:8: /etc/passwd is not a directory",
		"dir: /etc/passwd":                     "nightly.yaml:1:6: /etc/passwd is not a directory",
		"{dir: ./a, index: {dir: b/../a}}":     "nightly.yaml: dir and index are the same directory",
		"index: {dir: a, url: wheels}":         "nightly.yaml:1:22: url under index: must be a URL such as",
		"sources: []":                          "sources is empty",
		"sources: [nigh]":                      "unknown source \"nigh\": want release or main",
		"sources: [{name: x}]":                 "a source requires name and deepspeed",
		"sources: [main, main]":                "duplicate source name \"main\"",
		"index: {url: 'https://a/'}":           "missing dir under index",
		"deploy: {canary: x}":                  "missing inventory under deploy",
		"deploy: {inventory: i, source: main}": "unknown source \"main\" under deploy: not in sources",
		"deploy: {inventory: i, fork: 3}":      "did you mean \"forks\"?",
	} {
		_, _, err := read(t, text)
		var wrong *lineerr.Error
		if !errors.As(err, &wrong) || wrong.ExitCode() != 2 || !strings.Contains(err.Error(), want) && !strings.Contains(wrong.Hint(), want) {
			t.Errorf("%q:\n%v\nwant\n%s", text, err, want)
		}
	}
}

// Any file is invalid, or lists entries with names of their own.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		"wheels: {wheels: [{arch: 8.0}]}", "wheels:\n  defaults: {cpu: x86-64-v3}\n  wheels:\n  - name: a\n    ops: [utils]\n  - keep-debug: true\n",
		"a: *b", "? x\n: y", "wheels: {wheels: [{arch: !!int 8}]}", "wheels: {wheels: [{gpu: A100}]}\nsources: [main]\ndeploy: {inventory: i}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, _, err := read(t, string(text))
		names := map[string]bool{}
		for _, e := range c.Entries {
			names[e.Name] = true
		}
		if err == nil && (len(c.Entries) == 0 || len(names) < len(c.Entries)) {
			t.Errorf("%q: %+v", text, c.Entries)
		}
	})
}
