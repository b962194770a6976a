//go:build full

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/wheel"
)

// A file of three wheels is built on one engine, on a toolchain that is made
// once; what is written beside them holds for all.
func TestFullFarmMatrix(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "wheels.yaml")
	text := "defaults: {ops: [utils]}\nmatrix: {cpu: [x86-64-v2, x86-64-v3]}\nwheels: [{name: debug, keep-debug: true, cpu: x86-64-v4}]\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(xdg.Reload)                                   // after the variable is back
	t.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache")) // a store of its own
	xdg.Reload()
	out := filepath.Join(dir, "dist")
	var stdout, stderr bytes.Buffer
	args := []string{"wheel", "--matrix", file, "--parallel", "2", "--json", "-o", out}
	if code := run(t.Context(), args, strings.NewReader(""), &stdout, io.MultiWriter(&stderr, testLog{t})); code != 0 {
		t.Fatalf("exit %d\n%s", code, &stderr)
	}
	var doc builtWheels
	if err := json.Unmarshal(stdout.Bytes(), &doc); err != nil || len(doc.Wheels) != 3 || len(doc.Failed) != 0 {
		t.Fatalf("%v: %s", err, &stdout)
	}
	for _, w := range doc.Wheels {
		v, err := wheel.Verify(t.Context(), w.Path)
		if err != nil || len(v.Findings()) > 0 {
			t.Errorf("%s: %v, %v", w.Name, v.Findings(), err)
		}
		t.Logf("result: %s: %s, sha256 %s", w.Name, filepath.Base(w.Path), w.SHA256)
	}
	command(t, out, "sha256sum", "--check", "--strict", wheel.SumsName)
}
