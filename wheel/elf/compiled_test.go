package elf_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/wheel/elf"
)

const cSource = `
#include <math.h>
#include <stdio.h>
int PyInit_made(void) { return printf("%g", pow(2, 3)); }
`

// Hidden functions leave no symbol: what the loader must call is told by the
// relocations alone.
const hiddenIFunc = `
static int plain(void) { return 1; }
static int (*choose(void))(void) { return plain; }
static int chosen(void) __attribute__((ifunc("choose")));
int call(void) { return chosen(); }
`

const exportedIFunc = `
static int plain(void) { return 1; }
static int (*choose(void))(void) { return plain; }
int chosen(void) __attribute__((ifunc("choose")));
`

const clones = `
__attribute__((target_clones("avx2", "default"), visibility("hidden")))
int sum(const int *a, int n) { int s = 0; while (n--) s += *a++; return s; }
int call(const int *a, int n) { return sum(a, n); }
`

const supports = `int vectors(void) { return __builtin_cpu_supports("avx2"); }`

const cxxSource = `
#include <list>
#include <stdexcept>
#include <string>
std::string join(const std::list<std::string> &all) {
	std::string s;
	for (auto &one : all) s += one;
	if (s.empty()) throw std::runtime_error(s);
	return s;
}
`

const cxxTakesString = `
#include <string>
unsigned long length(const std::string &s) { return s.size(); }
`

const cxxNoString = `
#include <new>
int *make(int n) { return new int[n]; }
`

// What uses torch's stable ABI imports C functions alone. A name that only has a class of torch's
// among its parameters is not torch's.
const (
	stableC      = "extern int torch_list_size(void), aoti_torch_get_dim(void); int use(void) { return torch_list_size() + aoti_torch_get_dim(); }"
	managerCXX   = "namespace at { struct Tensor; } struct manager { bool free(at::Tensor &); }; bool use(manager &m, at::Tensor &t) { return m.free(t); }"
	torchMethod  = "namespace at { struct Tensor { long numel() const; }; } long use(at::Tensor &t) { return t.numel(); }"
	torchInfo    = "#include <typeinfo>\nnamespace c10 { struct Error { virtual ~Error(); }; } const char *use() { return typeid(c10::Error).name(); }"
	torchOther   = "namespace atlas { int f(); } int use() { return atlas::f(); }"
	pythonSource = "extern int PyErr_Occurred(void); int use(void) { return PyErr_Occurred(); }"
)

func importsNothing(o *elf.Object) bool {
	return reflect.DeepEqual(o.Torch, elf.Torch{C: []string{}})
}

func TestCompiled(t *testing.T) {
	needs.Time(t)
	tool(t, "readelf")
	dir := t.TempDir()
	yes, no := true, false
	for _, c := range []struct {
		name, source, flags string
		check               func(*elf.Object) bool
	}{
		{"plain.c", cSource, "-shared -fPIC -lm", func(o *elf.Object) bool {
			return !o.Stripped && !o.IFuncs && o.CXX11ABI == nil && o.Floor("GLIBC_") != "" && o.Floor("GLIBCXX_") == ""
		}},
		{"stripped.c", cSource, "-shared -fPIC -s -lm -Wl,-soname,libmade.so.1", func(o *elf.Object) bool { return o.Stripped }},
		{"debug.c", cSource, "-shared -fPIC -g -lm", func(o *elf.Object) bool { return !o.Stripped }},
		{"packed.c", cSource, "-shared -fPIC -g -gz -lm", func(o *elf.Object) bool { return !o.Stripped }},
		{"rpath.c", cSource, "-shared -fPIC -lm -Wl,-rpath,/opt/a:$ORIGIN -Wl,--disable-new-dtags", func(o *elf.Object) bool {
			return reflect.DeepEqual(o.RPath, []string{"/opt/a", "$ORIGIN"}) && len(o.RunPath) == 0
		}},
		{"runpath.c", cSource, "-shared -fPIC -lm -Wl,-rpath,/opt/a -Wl,-rpath,$ORIGIN/../lib -Wl,--enable-new-dtags", func(o *elf.Object) bool {
			return reflect.DeepEqual(o.RunPath, []string{"/opt/a", "$ORIGIN/../lib"}) && len(o.RPath) == 0
		}},
		{"static.c", cSource + "int main(void) { return PyInit_made(); }", "-static -lm", func(o *elf.Object) bool {
			return len(o.Needs) == 0 && len(o.Versions) == 0
		}},
		{"program.c", cSource + "int main(void) { return PyInit_made(); }", "-lm", func(o *elf.Object) bool {
			return o.Floor("GLIBC_") != ""
		}},
		{"relocatable.c", cSource, "-c -fPIC", func(o *elf.Object) bool { return len(o.Needs) == 0 && !o.Stripped }},
		{"hidden.c", hiddenIFunc, "-shared -fPIC -s", func(o *elf.Object) bool { return o.IFuncs }},
		{"exported.c", exportedIFunc, "-shared -fPIC -s", func(o *elf.Object) bool { return o.IFuncs }},
		{"clones.c", clones, "-shared -fPIC -s", func(o *elf.Object) bool { return o.IFuncs }},
		// libgcc's functions are linked in and hidden; without it they are imported.
		{"supports.c", supports, "-shared -fPIC", func(o *elf.Object) bool { return len(o.AsksCPU) == 0 && !o.IFuncs }},
		{"imports.c", supports, "-shared -fPIC -nostdlib", func(o *elf.Object) bool {
			return reflect.DeepEqual(o.AsksCPU, []string{"__cpu_model"})
		}},
		{"new.cc", cxxSource, "-shared -fPIC -D_GLIBCXX_USE_CXX11_ABI=1", func(o *elf.Object) bool {
			return reflect.DeepEqual(o.CXX11ABI, &yes) && o.Floor("GLIBCXX_") != "" && o.Floor("CXXABI_") != ""
		}},
		{"old.cc", cxxSource, "-shared -fPIC -D_GLIBCXX_USE_CXX11_ABI=0", func(o *elf.Object) bool {
			return reflect.DeepEqual(o.CXX11ABI, &no)
		}},
		{"takes-new.cc", cxxTakesString, "-shared -fPIC -D_GLIBCXX_USE_CXX11_ABI=1", func(o *elf.Object) bool {
			return reflect.DeepEqual(o.CXX11ABI, &yes)
		}},
		{"takes-old.cc", cxxTakesString, "-shared -fPIC -D_GLIBCXX_USE_CXX11_ABI=0", func(o *elf.Object) bool {
			return reflect.DeepEqual(o.CXX11ABI, &no)
		}},
		{"stable.c", stableC, "-shared -fPIC", func(o *elf.Object) bool {
			return reflect.DeepEqual(o.Torch, elf.Torch{C: []string{"aoti_torch_get_dim", "torch_list_size"}})
		}},
		{"manager.cc", managerCXX, "-shared -fPIC", importsNothing},
		{"atlas.cc", torchOther, "-shared -fPIC", importsNothing},
		{"method.cc", torchMethod, "-shared -fPIC", func(o *elf.Object) bool { return o.Torch.CXX == "_ZNK2at6Tensor5numelEv" }},
		{"info.cc", torchInfo, "-shared -fPIC", func(o *elf.Object) bool { return o.Torch.CXX == "_ZTIN3c105ErrorE" }},
		{"python.c", pythonSource, "-shared -fPIC", func(o *elf.Object) bool { return o.Torch.Python == "PyErr_Occurred" }},
		{"none.cc", cxxNoString, "-shared -fPIC", func(o *elf.Object) bool { return o.CXX11ABI == nil }},
	} {
		if runtime.GOARCH != "amd64" && (c.source == clones || c.source == supports) {
			continue // they ask for AVX2
		}
		source, object := filepath.Join(dir, c.name), filepath.Join(dir, c.name+".out")
		if err := os.WriteFile(source, []byte(c.source), 0o600); err != nil {
			t.Fatal(err)
		}
		compiler := map[string]string{".c": "gcc", ".cc": "g++"}[filepath.Ext(c.name)]
		run(t, dir, compiler, append([]string{"-O1", "-o", object, source}, strings.Fields(c.flags)...)...)
		if o := compareReadelf(t, object); !c.check(o) {
			t.Errorf("%s %s: %+v", c.name, c.flags, o)
		}
	}
}

// What is imported decides before what is the object's own.
func TestCXX11ABI(t *testing.T) {
	const (
		newName  = "_ZN4join4listERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
		newTag   = "_ZNK3foo4nameB5cxx11Ev"
		oldName  = "_ZN4join4listERKSs"
		oldOwn   = "_ZNSs6appendEPKc"
		oldConst = "_ZNKSs4sizeEv"
		oldWide  = "_ZNSbIwSt11char_traitsIwESaIwEE6appendEPKw"
		oldList  = "_Z4joinSt4listIiSaIiEE"
		oldMany  = "_Z4joinSt6vectorISsSaISsEE"
		clang    = "_Z4joinRKNSt3__112basic_stringIcNS_11char_traitsIcEENS_9allocatorIcEEEE" // libc++
		plain    = "_ZN6Ss_old4sizeEv"
		c        = "RKSs"
	)
	yes, no := true, false
	for _, test := range []struct {
		imports, own string
		want         *bool
	}{
		{newName, plain, &yes},
		{newTag, "", &yes},
		{oldName, plain, &no},
		{oldOwn, "", &no},
		{oldConst, "", &no},
		{oldWide, "", &no},
		{oldList, "", &no},
		{oldMany, "", &no},
		{newName + " " + oldOwn, "", &yes},
		{oldName, newName, &no},
		{newName, oldName, &yes},
		{plain, newName, &yes},
		{plain, oldName, &no},
		{plain, oldName + " " + newName, nil},
		{plain + " " + clang, c, nil},
	} {
		var source strings.Builder
		for i, name := range strings.Fields(test.imports) {
			fmt.Fprintf(&source, "extern int i%d __asm__(%q); int *use%d(void) { return &i%d; }\n", i, name, i, i)
		}
		for i, name := range strings.Fields(test.own) {
			fmt.Fprintf(&source, "int own%d __asm__(%q) = 1;\n", i, name)
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "a.c"), []byte(source.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		run(t, dir, "gcc", "-shared", "-fPIC", "-nostdlib", "-o", "a.so", "a.c")
		o, _ := readFile(t, filepath.Join(dir, "a.so"))
		if !reflect.DeepEqual(o.CXX11ABI, test.want) {
			t.Errorf("imports %q, own %q: %v", test.imports, test.own, o.CXX11ABI)
		}
	}
}
