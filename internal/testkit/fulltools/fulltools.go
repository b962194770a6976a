// Package fulltools gives the long proofs the tools with which they compare dsbuild, and wheels of
// the package index. It keeps both in the user's cache.
package fulltools

import (
	_ "embed"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/internal/testkit/python"
)

//go:embed requirements.txt
var requirements string

// Dir returns the folder of the proofs in the user's cache.
func Dir(tb testing.TB) string {
	tb.Helper()
	dir := filepath.Join(xdg.CacheHome, "dsbuild", "full")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// one prevents parallel tests from making the tools twice.
var one sync.Mutex

// Tools returns the folder of the programs cuobjdump, auditwheel, twine, torch-abi-audit and
// python, in the versions of requirements.txt. It makes their Python environment if that is
// missing.
func Tools(tb testing.TB) string {
	tb.Helper()
	one.Lock()
	defer one.Unlock()
	var packages []string
	for line := range strings.Lines(requirements) {
		if requirement, _, _ := strings.Cut(line, "#"); strings.TrimSpace(requirement) != "" {
			packages = append(packages, strings.TrimSpace(requirement))
		}
	}
	tools, err := python.Environment(tb.Context(), python.EnvironmentOptions{Packages: packages, Log: func(line string) { tb.Log(line) }})
	if err != nil {
		tb.Fatal(err)
	}
	// NVIDIA's package hides its program in a folder of its CUDA version.
	const hidden = "lib/python*/site-packages/nvidia/*/bin/cuobjdump"
	found, err := filepath.Glob(filepath.Join(tools, hidden))
	if err != nil || len(found) != 1 {
		tb.Fatalf("%d files are %s of the tools, instead of one", len(found), hidden)
	}
	link := filepath.Join(tools, "bin", "cuobjdump")
	if err := errors.Join(os.RemoveAll(link), os.Symlink(found[0], link)); err != nil {
		tb.Fatal(err)
	}
	return filepath.Join(tools, "bin")
}
