//go:build full && linux

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/wheel"
)

// TestFullToolchainsBundle builds a wheel with companions, one of them of a git
// repository made here and compiled, gathers what all of them require, and
// installs the lot on a node that lacks most of it and has no route to anywhere.
func TestFullToolchainsBundle(t *testing.T) {
	repo := t.TempDir()
	for name, text := range map[string]string{
		"pyproject.toml": "[build-system]\nrequires = ['setuptools', 'hatchling', 'torch']\nbuild-backend = 'setuptools.build_meta'\n",
		"setup.py": "import torch\nfrom setuptools import Extension, setup\n" +
			"setup(name='Native.Thing', version='1.2', ext_modules=[Extension('native_thing', ['n.c'], extra_compile_args=['-march=native'])], install_requires=['torch', 'safetensors>=0.4', 'tabulate'])\n",
		"n.c": "#include <Python.h>\nstatic struct PyModuleDef m = {PyModuleDef_HEAD_INIT, \"native_thing\", 0, -1, 0};\nPyMODINIT_FUNC PyInit_native_thing(void) { return PyModule_Create(&m); }\n",
	} {
		if err := os.WriteFile(filepath.Join(repo, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	command(t, repo, "git", "init", "-q")
	command(t, repo, "git", "add", "-A")
	command(t, repo, "git", "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "first")
	dist := filepath.Join(t.TempDir(), "dist")
	args := []string{"wheel", "--json", "--ops", "cpu_adam,utils", "--bundle", "--with", "native-thing@git+file://" + repo, "--with", "msgpack==1.1.0", "-o", dist}
	var doc wheelResult
	if err := json.Unmarshal(dsbuild(t, args...), &doc); err != nil || doc.Wheelhouse == nil {
		t.Fatal(err, doc)
	}
	house, err := wheel.ReadBundle(t.Context(), filepath.Join(dist, "wheelhouse"))
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for _, w := range house.Wheels {
		have[w.Name] = w.Why
	}
	for name, why := range map[string]string{"native-thing": wheel.Companion, "msgpack": wheel.Companion, "safetensors": wheel.Dependency, "tabulate": wheel.Dependency, "hjson": wheel.Dependency, "torch": "", "sympy": "", "setuptools": ""} {
		if have[name] != why {
			t.Errorf("%s: %q, want %q", name, have[name], why)
		}
	}
	command(t, dist, "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")

	fleet := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.WithTorch})
	site, _ := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(fleet.Nodes[0].Python)), "lib", "python3*", "site-packages"))
	for _, name := range []string{"hjson", "ninja", "einops", "pydantic"} {
		files, _ := filepath.Glob(filepath.Join(site[0], name+"*"))
		command := filepath.Join(filepath.Dir(fleet.Nodes[0].Python), name) // dsbuild replaces no command that belongs to no package
		for _, f := range append(files, command) {
			if err := os.RemoveAll(f); err != nil {
				t.Fatal(err)
			}
		}
	}
	text, err := os.ReadFile(fleet.Inventory)
	if err != nil {
		t.Fatal(err)
	}
	alone := bytes.Replace(text, []byte("defaults:\n"), []byte("defaults:\n  exec_prefix: [unshare, --user, --map-root-user, --net]\n"), 1)
	if err := os.WriteFile(fleet.Inventory, alone, 0o644); err != nil {
		t.Fatal(err)
	}
	var report report.Report
	if err := json.Unmarshal(dsbuild(t, "deploy", fleet.Inventory, "--wheel", dist, "--deps", "bundle", "--bundle", filepath.Join(dist, "wheelhouse"), "--json"), &report); err != nil {
		t.Fatal(err)
	}
	n := report.Nodes[0]
	for _, name := range []string{"einops", "hjson", "msgpack 1.1.0", "native-thing 1.2", "ninja", "pydantic", "safetensors", "tabulate"} {
		if !slices.ContainsFunc(n.ExtraWheels, func(a string) bool { return a == name || strings.HasPrefix(a, name+" ") }) {
			t.Errorf("%s did not go along: %v", name, n.ExtraWheels)
		}
	}
	command(t, t.TempDir(), fleet.Nodes[0].Python, "-c", "import native_thing, safetensors, tabulate, msgpack; assert msgpack.version == (1, 1, 0)")
	dsbuild(t, "rollback", fleet.Inventory)
	t.Logf("result: installed with no route to anywhere: %s", strings.Join(n.ExtraWheels, ", "))
}

// dsbuild runs a command that must succeed, and returns what it prints.
func dsbuild(t *testing.T, args ...string) []byte {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), args, strings.NewReader(""), &stdout, io.MultiWriter(&stderr, testLog{t})); code != 0 {
		t.Fatalf("dsbuild %s: exit %d\n%s%s", strings.Join(args, " "), code, &stderr, &stdout)
	}
	return stdout.Bytes()
}
