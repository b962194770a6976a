// Package wheeltest makes small real wheels for tests: with the outer shape of
// DeepSpeed's, and ops that are real shared objects, assembled and linked by the
// machine's gcc, with the machine code and the device code the test asks for.
package wheeltest

import (
	"archive/zip"
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/elf"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/wheel"
)

// Options describe the wheel to make. The zero value is a wheel with cpu_adam and fused_adam for
// 8.0.
type Options struct {
	Version  string            // of DeepSpeed; "" means 0.19.8
	Commit   string            // of its sources, which are no release then
	Python   string            // tag; "" means cp311
	Torch    string            // X.Y.Z; "" means 2.15.0
	CUDA     string            // X.Y; "" means 13.2
	CPU      wheel.CPULevel    // in the manifest; "" means x86-64-v3; armv8-a makes a wheel for aarch64
	Ops      []Op              // nil means DefaultOps
	Requires []string          // besides torch
	Files    map[string]string // further files, or other contents of those there
	Scripts  map[string]string // those of the wheel's data directory
	Plan     string            // digest of its plan; "" means PlanDigest
	ByteCode *wheel.ByteCode   // the byte code beside it; nil: none
	Stable   string            // oldest torch, X.Y, of a wheel of the stable ABI; "": for Torch alone
	AllOps   bool              // of a wheel of the stable ABI: all ops were asked for
	Archs    []string          // of a wheel of the stable ABI: those asked for; none: every GPU
	Recipe   int               // of the build tag of a wheel of the stable ABI (default 1), or NoBuildTag
	Variants []wheel.Variant   // of a wheel of the stable ABI, as its plan knows them; the ops name theirs
}

// NoBuildTag is the Recipe of a wheel of the stable ABI whose name has no build tag.
const NoBuildTag = -1

// OfKind returns the options for a wheel of a kind.
func OfKind(kind wheel.Kind) Options {
	if kind == wheel.KindTorch {
		return Options{}
	}
	o := Variants()
	o.Ops = append(o.Ops, Op{Name: "cpu_adam", Dir: "adam", Variant: "v4", Code: avx512})
	o.Variants = append(o.Variants, wheel.Variant{Name: "v4", Ops: []string{"cpu_adam"}, CPU: string(wheel.CPUv4)})
	for _, name := range wheel.DefaultOps() {
		switch {
		case slices.ContainsFunc(o.Ops, func(op Op) bool { return op.Name == name }):
		case wheel.HasLevels(name):
			o.Ops = append(o.Ops, Op{Name: name, Dir: "more", Variant: "v2"}, Op{Name: name, Dir: "more", Variant: "v3", Code: avx2},
				Op{Name: name, Dir: "more", Variant: "v4", Code: avx512})
			for i, v := range o.Variants {
				if v.CPU != "" {
					o.Variants[i].Ops = append(o.Variants[i].Ops, name)
				}
			}
		default:
			o.Ops = append(o.Ops, Op{Name: name, Dir: "more"})
		}
	}
	switch kind {
	case wheel.KindAllOps:
		o.AllOps, o.Ops = true, append(o.Ops, Op{Name: "gds", Dir: "more", Runtime: "13"})
	case wheel.KindCustom:
		o.Archs = []string{"8.0"}
	}
	return o
}

// Op is one compiled op.
type Op struct {
	Name string
	Dir  string // below deepspeed/ops
	// Variant is a part of the file's name, of a wheel of the stable ABI that has the op several times.
	Variant string
	Runtime string   // major of the CUDA whose runtime it loads; "" for none
	Code    string   // assembly, of words (.long) for aarch64; "" is no instruction of note
	SASS    []string // compute capabilities: "8.0"
	PTX     []string
	// Imports are functions that it calls. For those of torch's C interface it names libtorch_cpu.so,
	// unless Unnamed is set.
	Imports []string
	Unnamed bool
	// Unlinked has PTX for these, left beside linked device code.
	Unlinked []string
}

// DefaultOps are an op with AVX2 instructions and one with device code.
func DefaultOps() []Op {
	return []Op{
		{Name: "cpu_adam", Dir: "adam", Code: avx2},
		{Name: "fused_adam", Dir: "adam", SASS: []string{"8.0"}},
	}
}

const (
	avx2   = "vpaddd %ymm1, %ymm2, %ymm3"
	avx512 = "vpaddd %zmm1, %zmm2, %zmm3"
)

func (o Options) withDefaults() Options {
	set := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	set(&o.Version, "0.19.8")
	set(&o.Python, "cp311")
	set(&o.Torch, "2.15.0")
	set(&o.CUDA, "13.2")
	set(&o.Plan, PlanDigest())
	o.Recipe = cmp.Or(o.Recipe, 1)
	if o.CPU == "" {
		o.CPU = wheel.CPUv3
	}
	if o.Ops == nil {
		o.Ops = DefaultOps()
	}
	if o.CPU.Machine() == wheel.Arm {
		// There is one build of each op.
		o.Ops, o.Variants = slices.CompactFunc(slices.Clone(o.Ops), func(a, b Op) bool { return a.Name == b.Name }), nil
		for i, op := range o.Ops {
			if o.Ops[i].Variant = ""; op.Code == avx2 {
				o.Ops[i].Code = ".long 0x4e22cc20" // fmla v0.4s, v1.4s, v2.4s
			}
		}
	}
	return o
}

// manifest returns the manifest as far as the plan of the wheel knows it.
func (o Options) manifest() wheel.Manifest {
	m := wheel.Manifest{
		Source: wheel.Source{Kind: "release", Ref: o.Version, SHA256: strings.Repeat("ab", 32)},
		CPU:    string(o.CPU), PlanDigest: o.Plan,
		Base: wheel.Base{Ref: "base.tar", Digest: "sha256:" + strings.Repeat("ef", 32)}, Env: map[string]string{},
		OpsRequested: []string{}, ArchsRequested: append([]string{}, o.Archs...),
	}
	if o.Commit != "" {
		m.Source.Kind, m.Source.Ref, m.Source.Commit = "git", "git+https://example.org/deepspeed@main", o.Commit
	}
	for _, op := range o.Ops {
		if !slices.Contains(m.OpsRequested, op.Name) {
			m.OpsRequested = append(m.OpsRequested, op.Name)
		}
	}
	if o.Stable != "" {
		m.TorchABI = &wheel.TorchABI{Stable: true, Min: o.Stable}
		m.Torch, m.CUDA, m.Python = o.Stable, o.cudaMajor(), "3.10+"
		m.Recipe, m.Variants = max(o.Recipe, 0), o.Variants
		if len(m.CUDAs()) > 1 || !slices.ContainsFunc(o.Ops, func(op Op) bool { return len(op.SASS)+len(op.PTX) > 0 || op.Runtime != "" }) {
			m.CUDA = ""
		}
	}
	return m
}

func (o Options) cudaMajor() string { return strings.Split(o.CUDA, ".")[0] }

func (o Options) version() string {
	var parts []string
	if o.Commit != "" {
		parts = append(parts, "g"+o.Commit[:7])
	}
	if o.Stable == "" {
		archs := []wheel.Arch{}
		for _, op := range o.Ops {
			parsed, err := wheel.ParseArchs(op.SASS)
			if len(op.SASS) > 0 && err == nil {
				archs = append(archs, parsed...)
			}
		}
		parts = append(parts, wheel.LocalVersion(o.Torch, o.CUDA, slices.Compact(archs), false, o.CPU))
	} else if label := o.manifest().Label(o.AllOps); label != "" {
		parts = append(parts, label)
	}
	if len(parts) == 0 {
		return o.Version
	}
	return o.Version + "+" + strings.Join(parts, ".")
}

// Compiled makes a wheel as DeepSpeed's setup.py and strip leave it, and
// returns its path.
func Compiled(t testing.TB, dir string, opt Options) string {
	t.Helper()
	opt = opt.withDefaults()
	version := opt.version()
	tag := opt.Python + "-" + opt.Python + "-linux_" + opt.CPU.Machine()
	info := "deepspeed-" + version + ".dist-info/"
	installed := []string{"'async_io': False"}
	for _, op := range opt.Ops {
		installed = append(installed, "'"+op.Name+"': 1")
	}
	metadata := "Metadata-Version: 2.1\nName: deepspeed\nVersion: " + version + "\nRequires-Dist: torch>=2.0.0\n"
	for _, r := range opt.Requires {
		metadata += "Requires-Dist: " + r + "\n"
	}
	files := map[string]string{
		"deepspeed/__init__.py":         "from .version import __version__\n",
		"deepspeed/version.py":          "__version__ = '" + version + "'\n",
		"deepspeed/git_version_info.py": "from .git_version_info_installed import *\n",
		"deepspeed/git_version_info_installed.py": fmt.Sprintf("version='%s'\ninstalled_ops={%s}\ntorch_info={'version': '%s', 'cuda_version': '%s'}\n",
			version, strings.Join(installed, ", "), wheel.Minor(opt.Torch), opt.CUDA),
		"deepspeed/ops/__init__.py": "",
		info + "METADATA":           metadata + "\nWhat it is.\n",
		info + "WHEEL":              "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: " + tag + "\n",
	}
	for _, op := range opt.Ops {
		path := op.Path(opt.Python, opt.CPU.Machine())
		if opt.Stable != "" {
			path = filepath.Join("deepspeed/ops", op.Dir, strings.TrimSuffix("lib"+op.Name+"_op."+op.Variant, ".")+".so")
			files[filepath.Join("deepspeed/ops", op.Dir, op.Name+"_op.py")] = "from deepspeed._stable_abi import expose\n\nexpose(globals(), {})\n"
		}
		files[path] = string(op.assemble(t, opt.CPU.Machine()))
	}
	if opt.Stable != "" {
		cuda := "''"
		if slices.ContainsFunc(opt.Ops, func(op Op) bool { return len(op.SASS) > 0 }) {
			cuda = "'" + opt.cudaMajor() + "'"
		}
		if all := opt.manifest().CUDAs(); len(all) > 1 {
			cuda = "('" + strings.Join(all, "', '") + "')"
		}
		record, told, _ := strings.Cut(files["deepspeed/git_version_info_installed.py"], "torch_info=")
		device := ""
		for _, op := range opt.Ops {
			if len(op.SASS) > 0 && !strings.Contains(device, "'"+op.Name+"'") {
				device += "'" + op.Name + "', "
			}
		}
		files["deepspeed/git_version_info_installed.py"] = "from deepspeed import _stable_abi\n\n" + record +
			"accelerator_name, installed_ops = _stable_abi.accelerator(installed_ops, (" + device + "))\n" +
			"torch_info=_stable_abi.torch_info(" + strings.TrimSpace(told) + ", " + cuda + ")\n"
		files["deepspeed/_stable_abi.py"] = "def expose(module, libraries, cuda=()):\n    pass\n\ndef accelerator(installed, device):\n    return 'cuda', installed\n\ndef torch_info(built, cuda):\n    return built\n"
	}
	for name, text := range opt.Scripts {
		files["deepspeed-"+version+".data/scripts/"+name] = text
	}
	maps.Copy(files, opt.Files)
	path := filepath.Join(dir, "deepspeed-"+version+"-"+tag+".whl")
	Write(t, path, files)
	return path
}

// Path is the op's place in a wheel for a Python of that tag, on a machine.
func (op Op) Path(python, machine string) string {
	number := strings.TrimPrefix(python, "cp")
	return filepath.Join("deepspeed/ops", op.Dir, op.Name+"_op.cpython-"+number+"-"+machine+"-linux-gnu.so")
}

// Packed makes a wheel as dsbuild wheel does, and returns its path.
func Packed(t testing.TB, dir string, opt Options) string {
	t.Helper()
	path, _ := pack(t, dir, opt.withDefaults())
	return path
}

func pack(t testing.TB, dir string, opt Options) (string, wheel.Build) {
	t.Helper()
	build := wheel.Build{
		GCC: "12.2.0", Python: "3." + strings.TrimPrefix(opt.Python, "cp3"), Torch: opt.Torch, CUDA: opt.CUDA,
		ByteCode: opt.ByteCode,
		Packages: []wheel.Package{{PURL: "pkg:pypi/torch@" + opt.Torch, File: "RECORD", SHA256: strings.Repeat("01", 32)}},
	}
	path, err := wheel.Pack(t.Context(), Compiled(t, t.TempDir(), opt), dir, opt.manifest(), build)
	if err != nil {
		t.Fatal(err)
	}
	return path, build
}

// Built makes the same wheel as Packed, and the two files that a finished wheel has beside it:
// its manifest and its provenance statement.
func Built(t testing.TB, dir string, opt Options) (path string, m wheel.Manifest, statement []byte) {
	t.Helper()
	path, build := pack(t, dir, opt.withDefaults())
	m, err := wheel.ReadManifest(path)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC().Truncate(time.Second)
	m.Builder, m.BuiltAt = "test", &now
	if build.Record, err = wheel.RecordSum(path); err != nil {
		t.Fatal(err)
	}
	if statement, err = wheel.Provenance(m, build, now, now); err != nil {
		t.Fatal(err)
	}
	return path, m, statement
}

// LoadedByPython returns the files of a wheel for nodes whose torch is a stub. Its ops, cpu_adam if none is named, load
// as those of DeepSpeed do, but are written in Python.
func LoadedByPython(ops ...string) map[string]string {
	if len(ops) == 0 {
		ops = []string{"cpu_adam"}
	}
	files := map[string]string{"deepspeed/ops/op_builder/__init__.py": ""}
	all := "import importlib\n\nclass Builder:\n    def __init__(self, op):\n        self.op = op\n    def load(self):\n        return importlib.import_module('deepspeed.ops.%s_loaded' % self.op)\nALL_OPS = {"
	for _, op := range ops {
		files["deepspeed/ops/"+op+"_loaded.py"] = ""
		all += fmt.Sprintf("'%[1]s': Builder('%[1]s'), ", op)
	}
	files["deepspeed/ops/op_builder/all_ops.py"] = all + "}\n"
	return files
}

// PlanDigest is the digest of the plan that packed wheels name.
func PlanDigest() string { return strings.Repeat("cd", 32) }

// objects are the shared objects that this program has made: most wheels have the same ops.
var objects sync.Map

// assemble makes the op's shared object. It needs memcpy of glibc 2.14. One for aarch64 is made without a compiler for aarch64: its
// instructions are words, it names functions in data, and its header says that it is for aarch64.
func (op Op) assemble(t testing.TB, machine string) []byte {
	t.Helper()
	key := fmt.Sprintf("%s %#v", machine, op)
	if data, ok := objects.Load(key); ok {
		return data.([]byte)
	}
	dir := t.TempDir()
	source, object := filepath.Join(dir, "op.s"), filepath.Join(dir, "op.so")
	text := ".text\n.globl PyInit_" + op.Name + "_op\nPyInit_" + op.Name + "_op:\n" + op.Code + "\n" + calls(append(op.Imports, "memcpy"), machine) +
		".section .note.GNU-stack,\"\",@progbits\n" +
		fatbin(".nv_fatbin", op.PTX, op.SASS) + fatbin("__nv_relfatbin", op.Unlinked, nil)
	if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"-shared", "-nostdlib", "-Wl,-z,max-page-size=" + map[string]string{wheel.X86: "4096", wheel.Arm: "65536"}[machine], "-Wl,--strip-all,--build-id=none", "-o", object, source, "-lc"}
	if !op.Unnamed && slices.ContainsFunc(op.Imports, func(name string) bool { return strings.Contains(name, "torch_") }) {
		library := filepath.Join(dir, "libtorch_cpu.so")
		gcc(t, "-shared", "-nostdlib", "-Wl,-soname,libtorch_cpu.so", "-o", library, "-x", "c", os.DevNull)
		args = append(args, "-Wl,--no-as-needed", library)
	}
	if op.Runtime != "" {
		library := filepath.Join(dir, "libcudart.so")
		gcc(t, "-shared", "-nostdlib", "-Wl,-soname,libcudart.so."+op.Runtime, "-o", library, "-x", "c", os.DevNull)
		args = append(args, "-Wl,--no-as-needed", library)
	}
	gcc(t, args...)
	data, err := os.ReadFile(object)
	if err != nil {
		t.Fatal(err)
	}
	if machine == wheel.Arm {
		data[18] = byte(elf.EM_AARCH64)
	}
	objects.Store(key, data)
	return data
}

// Import is a function that a Library calls, and where the loader looks for it.
type Import struct {
	Function string
	Library  string // such as libc.so.6; empty: it names no library
	Version  string // such as GLIBC_2.34; empty: none
}

// Library returns a shared object that calls functions, as an extension module of Python that has no init function.
func Library(t testing.TB, imports ...Import) string {
	t.Helper()
	dir := t.TempDir()
	object, source := filepath.Join(dir, "module.so"), ""
	args := []string{"-shared", "-nostdlib", "-o", object, filepath.Join(dir, "module.c"), "-Wl,--no-as-needed"}
	for i, im := range imports {
		source += "void " + im.Function + "(void); void call" + strconv.Itoa(i) + "(void) { " + im.Function + "(); }\n"
		if im.Library == "" {
			continue
		}
		stub := filepath.Join(dir, strconv.Itoa(i))
		write(t, stub+".c", "void "+im.Function+"(void) {}\n")
		stubArgs := []string{"-shared", "-nostdlib", "-Wl,-soname," + im.Library, "-o", stub + ".so", stub + ".c"}
		if im.Version != "" {
			write(t, stub+".map", im.Version+" { global: "+im.Function+"; };\n")
			stubArgs = append(stubArgs, "-Wl,--version-script,"+stub+".map")
		}
		gcc(t, stubArgs...)
		args = append(args, stub+".so")
	}
	write(t, filepath.Join(dir, "module.c"), source)
	gcc(t, args...)
	data, err := os.ReadFile(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func gcc(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
}

// calls is the assembly that calls functions and returns.
func calls(names []string, machine string) string {
	if machine == wheel.Arm {
		return ".long 0xd65f03c0\n.data\n.quad " + strings.Join(names, ", ") + "\n" // ret
	}
	text := ""
	for _, name := range names {
		text += "call " + name + "@PLT\n"
	}
	return text + "ret\n"
}

// fatbin is a section with one container: headers of CUDA's format before
// payloads that are none.
func fatbin(section string, ptx, sass []string) string {
	const payload = 64
	entries := ""
	n := 0
	for kind, archs := range [][]string{1: ptx, 2: sass} {
		for _, a := range archs {
			n++
			entries += fmt.Sprintf(".short %d, 0x101\n.long 64\n.quad %d\n.long 0, 0\n.short 0, 1\n.long %s\n.long 0, 0\n.quad 0x11, 0, 0\n.fill %d\n",
				kind, payload, strings.ReplaceAll(a, ".", ""), payload)
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(".section %s,\"a\",@progbits\n.balign 8\n.long 0xba55ed50\n.short 1, 16\n.quad %d\n%s", section, n*(64+payload), entries)
}

// Write makes a wheel of files, adding the RECORD they deserve unless one is
// among them.
func Write(t testing.TB, path string, files map[string]string) {
	t.Helper()
	files = maps.Clone(files)
	record := ""
	for name := range files {
		if m := distInfo.FindString(name); m != "" {
			record = m + "RECORD"
		}
	}
	if _, ok := files[record]; !ok && record != "" {
		files[record] = recordOf(files, record)
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		w, err := z.Create(name)
		if err == nil {
			_, err = io.WriteString(w, files[name])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

var distInfo = regexp.MustCompile(`^[^/]+\.dist-info/`)

func recordOf(files map[string]string, record string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		sum := sha256.Sum256([]byte(files[name]))
		fmt.Fprintf(&b, "%s,sha256=%s,%d\n", name, base64.RawURLEncoding.EncodeToString(sum[:]), len(files[name]))
	}
	return b.String() + record + ",,\n"
}

// Read returns the files of a wheel but RECORD.
func Read(t testing.TB, path string) map[string]string {
	t.Helper()
	z, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	files := map[string]string{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(f.Name, ".dist-info/RECORD") {
			files[f.Name] = string(data)
		}
	}
	return files
}

// Variants returns the options for a wheel with two CUDAs and two CPU levels: cpu_adam and fused_adam have two builds each,
// utils has one.
func Variants() Options {
	torch := []string{"torch_library_impl"}
	return Options{
		Stable: "2.10", CPU: wheel.CPUv2,
		Ops: []Op{
			{Name: "cpu_adam", Dir: "adam", Variant: "v2", Imports: torch},
			{Name: "cpu_adam", Dir: "adam", Variant: "v3", Code: avx2, Imports: torch},
			{Name: "fused_adam", Dir: "adam", Variant: "cu12", Runtime: "12", SASS: []string{"7.0", "8.0"}, Imports: torch},
			{Name: "fused_adam", Dir: "adam", Variant: "cu13", Runtime: "13", SASS: []string{"8.0", "9.0"}, PTX: []string{"9.0"}, Imports: torch},
			{Name: "utils", Imports: torch},
		},
		Variants: []wheel.Variant{
			{Name: "cu12", Ops: []string{"fused_adam"}, CUDA: "12", Toolkit: "12.4"},
			{Name: "cu13", Ops: []string{"fused_adam"}, CUDA: "13", Toolkit: "13.0"},
			{Name: "v2", Ops: []string{"cpu_adam"}, CPU: string(wheel.CPUv2)},
			{Name: "v3", Ops: []string{"cpu_adam"}, CPU: string(wheel.CPUv3)},
		},
	}
}
