package compat

import (
	"testing"

	"github.com/dsbuild/dsbuild/fleet/node"
)

func TestTagsThatANodeInstalls(t *testing.T) {
	t.Parallel()
	f := node.Facts{Python: "3.11.2", Tag: "cp311", Platform: "linux_x86_64", Glibc: "2.28"}
	for tag, want := range map[string]bool{
		"py3-none-any": true, "py2-none-any": false, "py310-none-any": true, "py312-none-any": false, "py3-none-linux_x86_64": true,
		"cp311-cp311-manylinux_2_28_x86_64": true, "cp311-cp311-manylinux_2_29_x86_64": false, "cp311-cp311-manylinux2014_x86_64": true,
		"cp311-cp311-manylinux1_x86_64": true, "cp311-cp311-musllinux_1_2_x86_64": false, "cp311-cp311-manylinux_2_17_aarch64": false,
		"cp310-cp310-manylinux_2_17_x86_64": false, "cp38-abi3-manylinux_2_17_x86_64": true, "cp312-abi3-linux_x86_64": false,
		"cp311-none-manylinux_2_17_x86_64": true, "cp39-none-any": false, "cp311-cp311t-linux_x86_64": false, "pp311-pypy311_pp73-linux_x86_64": false,
		"": false, "py3": false, "c-a-any": false, "py3-none-win_amd64": false, "cp311-cp311-macosx_11_0_arm64": false,
	} {
		if got := Installs(tag, f); got != want {
			t.Errorf("%s: %v", tag, got)
		}
	}
	free := f
	free.Tag = "cp311t"
	if Installs("cp38-abi3-linux_x86_64", free) || !Installs("cp311-cp311t-linux_x86_64", free) {
		t.Error("a Python without the lock")
	}
}
