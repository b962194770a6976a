package nightly_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/diagnostic"
	"github.com/dsbuild/dsbuild/release/nightly"
)

func read(t *testing.T, text string) (nightly.Config, string, error) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "nightly.yaml")
	for name, text := range map[string]string{"nightly.yaml": text, "wheels.yaml": "wheels: [{name: a, arch: 8.0}]\n", "wrong.yaml": "wheels: [{arch: 8.0, abi: stabel}]\n", "said.yaml": "wheels: [{name: a, deepspeed: 0.19.7}]\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c, err := nightly.Read(file)
	return c, dir, err
}

func TestRead(t *testing.T) {
	c, dir, err := read(t, `
wheels: wheels.yaml
sources: [release, main, {name: fork, deepspeed: ../fork}]
dir: state
keep: 3
index: {dir: public, url: https://wheels.example.org/}
deploy: {inventory: inventory.yaml, canary: canary, source: main, forks: 8, verify: files}
`)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Entries) != 1 || c.Entries[0].Name != "a" {
		t.Errorf("%+v", c.Entries)
	}
	c.Entries = nil
	want := nightly.Config{
		Dir: filepath.Join(dir, "state"), Keep: 3,
		Sources: []nightly.Source{{Name: "release"}, {Name: "main", DeepSpeed: "git+https://github.com/deepspeedai/DeepSpeed@master"}, {Name: "fork", DeepSpeed: filepath.Join(filepath.Dir(dir), "fork")}},
		Index:   &nightly.Index{Dir: filepath.Join(dir, "public"), URL: "https://wheels.example.org/"},
		Deploy:  &nightly.Deploy{Inventory: filepath.Join(dir, "inventory.yaml"), Source: "main", Canary: "canary", Flags: map[string]string{"forks": "8", "verify": "files"}},
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("%+v\nwant\n%+v", c, want)
	}
	c, dir, err = read(t, "wheels: {matrix: {arch: [\"8.0\", \"9.0\"]}}\n")
	if err != nil || len(c.Entries) != 2 || c.Dir != filepath.Join(dir, "nightly") || c.Keep != 7 || len(c.Sources) != 1 || c.Index != nil || c.Deploy != nil {
		t.Errorf("%v, %+v", err, c)
	}
}

func TestMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"":                                                  "nightly.yaml:1:1: the nightly file is empty",
		"keep: 3":                                           "nightly.yaml:1:1: the file lists no wheels",
		"whels: wheels.yaml":                                "unknown key \"whels\" in the nightly file",
		"wheels: {wheels: [{arhc: 8.0}]}":                   "nightly.yaml:1:20: unknown key \"arhc\" in an entry of wheels",
		"wheels: said.yaml":                                 "nightly.yaml:1:1: wheel a has a key deepspeed",
		"wheels: none.yaml":                                 "none.yaml: cannot read the matrix",
		"wheels: {wheels: []}":                              "add at least one entry",
		"wheels: wheels.yaml\nnotify: {url: x}":             "notify is a program now: notify: [PROGRAM, ARGUMENT]",
		"wheels: wheels.yaml\nnotify: []":                   "add at least one entry",
		"wheels: none.yaml\nkeep: 0":                        "nightly.yaml:2:7: keep must be a number of builds",
		"keep: 1\nwheels: none.yaml":                        "nightly.yaml:2:9: ",
		"wheels: {wheels: [{arch: 8.0, cpu: v9}]}":          "nightly.yaml:1:36: cpu is \"v9\": must be x86-64-v2 (SSE4.2), x86-64-v3 (AVX2), x86-64-v4 (AVX-512), armv8-a (of aarch64), or native",
		"wheels: {wheels: [{gpu: FOO}]}":                    "nightly.yaml:1:25: GPU \"FOO\" is not in the tables",
		"wheels: wrong.yaml":                                "wrong.yaml:1:27: abi is \"stabel\": must be auto, stable or torch",
		"wheels: wheels.yaml\nindex: s3://wheels":           "nightly.yaml:2:8: the index of a night goes into a folder",
		"wheels: wheels.yaml\nindex: {dir: a, url: wheels}": "nightly.yaml:2:22: url of index must be an address such as",
		"wheels: wheels.yaml\nkeep: 0":                      "nightly.yaml:2:7: keep must be a number of builds",
		"wheels: wheels.yaml\nsources: []":                  "sources is empty",
		"wheels: wheels.yaml\nsources: [nigh]":              "source \"nigh\" is neither release nor main",
		"wheels: wheels.yaml\nsources: [{name: x}]":         "a source needs a name and a deepspeed",
		"wheels: wheels.yaml\nsources: [main, main]":        "a second source with the name \"main\"",
		"wheels: wheels.yaml\nindex: {url: 'https://a/'}":   "index has no dir",
		"wheels: wheels.yaml\ndeploy: {canary: x}":          "deploy has no inventory",

		"wheels: wheels.yaml\ndeploy: {inventory: i, source: main}": "deploy names the source \"main\", which is not in sources",
		"wheels: wheels.yaml\ndeploy: {inventory: i, fork: 3}":      "did you mean \"forks\"?",
	} {
		_, _, err := read(t, text)
		var wrong *diagnostic.Error
		if !errors.As(err, &wrong) || wrong.ExitCode() != 2 || !strings.Contains(err.Error(), want) && !strings.Contains(wrong.Hint(), want) {
			t.Errorf("%q:\n%v\nwant\n%s", text, err, want)
		}
	}
}
