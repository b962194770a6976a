package wheel_test

import (
	"path/filepath"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// What an import of a package loads decides what it needs of a node: its modules with their libraries, or the library for this
// machine of several.
func TestManifestOfAnotherPackage(t *testing.T) {
	library := func(glibc string, needs ...string) string {
		imports := []wheeltest.Import{{Function: "f", Library: "libc.so.6", Version: "GLIBC_" + glibc}}
		for _, name := range needs {
			imports = append(imports, wheeltest.Import{Function: "g", Library: name})
		}
		return wheeltest.Library(t, imports...)
	}
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"modules":                       {map[string]string{"a/_c.so": library("2.17"), "a/_d.so": library("2.28")}, "2.28"},
		"a module's library":            {map[string]string{"a/_c.so": library("2.17", "liba.so.1"), "a.libs/liba.so.1": library("2.34")}, "2.34"},
		"a library that no module uses": {map[string]string{"a/_c.so": library("2.17"), "a/libplugin.so": library("2.34")}, "2.17"},
		"one library":                   {map[string]string{"a/liba.so": library("2.34")}, "2.34"},
		"a library with its own": {map[string]string{
			"a/liba.so": library("2.17", "libb.so.1"), "a.libs/libb.so.1": library("2.25", "libc1.so.1"), "a.libs/libc1.so.1": library("2.34"),
		}, "2.34"},
		"one of several":                 {map[string]string{"a/liba_cuda.so": library("2.34"), "a/liba_cpu.so": library("2.25")}, "2.25"},
		"libraries that need each other": {map[string]string{"a/liba.so": library("2.34", "libb.so"), "a/libb.so": library("2.25", "liba.so")}, ""},
	} {
		c.files["a-1.dist-info/METADATA"] = "Metadata-Version: 2.1\nName: a\nVersion: 1\n"
		c.files["a-1.dist-info/WHEEL"] = "Wheel-Version: 1.0\n"
		at := filepath.Join(t.TempDir(), "a-1-py3-none-manylinux_2_17_x86_64.whl")
		wheeltest.Write(t, at, c.files)
		contents, err := wheel.Inspect(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		if got := contents.ManifestFor("linux_x86_64", filepath.Base(at)).Glibc; got != c.want {
			t.Errorf("%s: needs glibc %q, want %q", name, got, c.want)
		}
	}
}
