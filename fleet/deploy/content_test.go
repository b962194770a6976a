package deploy

import (
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// A wheel of the wheelhouse that installs on a node is rejected if its code does not run there.
func TestContentOfTheWheelhouseDecides(t *testing.T) {
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	wheelindex.Make(t, dir, wheelindex.Wheel{Name: "fast", Version: "1.0", Tag: "cp311-cp311-linux_x86_64", Files: map[string]string{
		"fast/_c.cpython-311-x86_64-linux-gnu.so": wheeltest.Library(t,
			wheeltest.Import{Function: "newer", Library: "libc.so.6", Version: "GLIBC_2.34"},
			wheeltest.Import{Function: "_ZN3c105ErrorC1Ev", Library: "libc10.so"},
			wheeltest.Import{Function: "cudaMalloc", Library: "libcudart.so.12"}),
	}})
	bundle, err := wheel.WriteBundle(t.Context(), dir, "3.11", map[string]*wheel.Source{"fast": nil})
	if err != nil {
		t.Fatal(err)
	}
	f := node.Facts{Python: "3.11.7", Tag: "cp311", Platform: "linux_x86_64", Glibc: "2.36", Torch: "2.10.0", TorchCUDA: "12.8"}
	extra, lacks, err := chooseExtraWheels(tables, wheel.Loaded{}, f, &bundle, false)
	if err != nil || len(lacks) > 0 || len(extra) != 1 {
		t.Errorf("%v, %v, %v: want the companion", extra, lacks, err)
	}
	f.Glibc, f.Torch, f.TorchCUDA = "2.28", "2.15.0", "13.2"
	extra, lacks, err = chooseExtraWheels(tables, wheel.Loaded{}, f, &bundle, false)
	words := strings.Join(reasonsOf(lacks), "; ")
	if err != nil || len(extra) > 0 || !strings.Contains(words, "needs glibc 2.34, but this node has 2.28") ||
		!strings.Contains(words, "built for CUDA 12, but this node's torch is built for 13.2") {
		t.Errorf("%v, %q, %v: want a refusal by glibc and CUDA", extra, words, err)
	}
}
