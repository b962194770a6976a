package environment_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
)

// A local wheel that does not run on a node type with the torch of the lock is refused by what its files show, with its place in
// environment.yaml; one that runs is locked.
func TestLockReadsLocalWheels(t *testing.T) {
	t.Parallel()
	x := wheelindex.New(t)
	for _, version := range []string{"2.10.0", "2.15.0"} { // for CUDA 12.8 and 13.2
		x.Add(t, wheelindex.Wheel{Name: "torch", Version: version})
	}
	glibc := wheeltest.Library(t, wheeltest.Import{Function: "newer", Library: "libc.so.6", Version: "GLIBC_2.34"})
	ofTorch := wheeltest.Library(t, wheeltest.Import{Function: "_ZN3c105ErrorC1Ev", Library: "libc10.so"},
		wheeltest.Import{Function: "cudaMalloc", Library: "libcudart.so.12"})
	musl := wheeltest.Library(t, wheeltest.Import{Function: "malloc", Library: "libc.musl-x86_64.so.1"})
	alien := []byte(wheeltest.Library(t))
	alien[18] = 183 // EM_AARCH64
	newer := environment.Platform{Machine: "x86_64", Glibc: "2.36"}
	const native, own = "cp311-cp311-linux_x86_64", "fast/_c.cpython-311-x86_64-linux-gnu.so"
	for name, c := range map[string]struct {
		tag, file, data, torch string
		kind                   environment.Platform
		want                   string
	}{
		"a newer glibc than the nodes'":       {native, own, glibc, "", old, "needs glibc 2.34, but this node has 2.28"},
		"a tag that promises less":            {"cp311-cp311-manylinux_2_17_x86_64", own, glibc, "", old, "needs glibc 2.34, but this node has 2.28"},
		"this glibc":                          {native, own, glibc, "", newer, ""},
		"torch of another CUDA":               {native, own, ofTorch, "2.15.0", old, "built for CUDA 12, but this node's torch is built for 13.2"},
		"torch of this CUDA":                  {native, own, ofTorch, "2.10.0", old, ""},
		"one library":                         {native, "fast/libfast.so", glibc, "", old, "needs glibc 2.34, but this node has 2.28"},
		"no torch":                            {native, own, ofTorch, "", old, "uses torch, but this node's environment has no torch"},
		"another machine":                     {native, own, string(alien), "", old, "built for aarch64, but this node is x86_64"},
		"the C library musl":                  {native, own, musl, "", old, "built for musl, but this node has glibc 2.28"},
		"in the folder of data":               {native, "fast-1.0.data/platlib/" + own, glibc, "", old, "needs glibc 2.34, but this node has 2.28"},
		"a library without a suffix":          {"py3-none-any", "fast/plugin.dat", glibc, "", old, "needs glibc 2.34, but this node has 2.28"},
		"another Python":                      {native, strings.Replace(own, "311", "310", 1), wheeltest.Library(t), "", old, "built for Python 3.10"},
		"no machine code":                     {native, "fast/table.py", "one = 1\n", "", old, ""},
		"machine code that cannot be read":    {native, own, glibc[:len(glibc)/2], "", old, own},
		"machine code of several Pythons":     {native, strings.Replace(own, "311-x86_64-linux-gnu", "so", 1), wheeltest.Library(t), "", old, ""},
		"machine code that is not ELF at all": {native, own, "MZ", "", old, ""},
	} {
		dir := t.TempDir()
		local := wheelindex.Make(t, dir, wheelindex.Wheel{Name: "fast", Version: "1.0", Tag: c.tag, Files: map[string]string{c.file: c.data}})
		text := "name: train\npython: 3.11\ncompanions: [" + filepath.Base(local) + "]\n"
		if c.torch != "" {
			text += "torch: " + c.torch + "\n"
		}
		_, err := resolver(t, x).Resolve(t.Context(), spec(t, dir, text), []environment.Platform{c.kind}, nil, dir)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v, want a lock", name, err)
		case c.want != "":
			mustBeCode(t, err, 2, "environment.yaml:3:14: ")
			mustBeCode(t, err, 2, c.want)
		}
	}
	dir := t.TempDir()
	universal := wheeltest.Packed(t, dir, wheeltest.Options{Stable: "2.10", CUDA: "13.2"})
	for torch, want := range map[string]string{"2.10.0": "built for CUDA 13, but this node's torch is built for 12.8", "2.15.0": ""} {
		s := spec(t, dir, "name: train\npython: 3.11\ntorch: "+torch+"\ndeepspeed: "+filepath.Base(universal)+"\n")
		_, err := resolver(t, x).Resolve(t.Context(), s, []environment.Platform{newer}, nil, dir)
		if want == "" && err != nil {
			t.Errorf("torch %s: %v, want a lock", torch, err)
		} else if want != "" {
			mustBeCode(t, err, 2, want)
		}
	}
}
