package wheeltest

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/wheel"
)

// Damage is a change that makes a packed wheel differ from its own claims. RECORD matches the
// changed files unless the damage is in RECORD itself.
type Damage struct {
	Name    string
	change  func(t testing.TB, files map[string]string)
	Finding string // part of the finding that a verification must report
}

// Damaged makes a wheel in dir and damages it.
func (d Damage) Damaged(t testing.TB, dir string) string {
	t.Helper()
	path := Packed(t, dir, Options{})
	files := Read(t, path)
	d.change(t, files)
	Write(t, path, files)
	return path
}

// Damages are the changes that a verification has to find.
func Damages() []Damage { return slices.Concat(damagedCode(), damagedWords()) }

// damagedCode returns changes to the wheel's code: it then differs from the wheel's claims.
func damagedCode() []Damage {
	return []Damage{
		{"op removed", func(t testing.TB, files map[string]string) {
			delete(files, op(t, files, "fused_adam"))
		}, "ops: op fused_adam is missing"},
		{"op added", func(t testing.TB, files map[string]string) {
			files["deepspeed/ops/lion/cpu_lion_op.so"] = files[op(t, files, "cpu_adam")]
		}, "ops: op cpu_lion is in the wheel, but not in the manifest"},
		{"arch swapped", func(t testing.TB, files map[string]string) {
			files[op(t, files, "fused_adam")] = assembled(t, Op{Name: "fused_adam", SASS: []string{"9.0"}})
		}, "archs: op fused_adam has SASS for 9.0, the manifest says 8.0"},
		{"PTX added", func(t testing.TB, files map[string]string) {
			files[op(t, files, "fused_adam")] = assembled(t, Op{Name: "fused_adam", SASS: []string{"8.0"}, PTX: []string{"8.0"}})
		}, "archs: op fused_adam has PTX for 8.0, the manifest says nothing"},
		{"section headers removed", func(t testing.TB, files map[string]string) {
			name := op(t, files, "fused_adam")
			elf := []byte(files[name])
			clear(elf[40:48]) // e_shoff
			clear(elf[58:64]) // e_shentsize, e_shnum, e_shstrndx
			files[name] = string(elf)
		}, "archs: op fused_adam cannot be read: it has no section headers"},
		{"AVX-512 build renamed", func(t testing.TB, files map[string]string) {
			files[op(t, files, "cpu_adam")] = assembled(t, Op{Name: "cpu_adam", Code: avx512})
		}, "CPU level: op cpu_adam has x86-64-v4 instructions, the manifest says x86-64-v3"},
		{"arch of one op swapped, another has it", func(t testing.TB, files map[string]string) {
			files[op(t, files, "fused_adam")] = assembled(t, Op{Name: "fused_adam"})
			files[op(t, files, "cpu_adam")] = assembled(t, Op{Name: "cpu_adam", SASS: []string{"8.0", "9.0"}})
		}, "archs: op cpu_adam has SASS for 8.0, 9.0, the manifest says 8.0"},
		{"device code removed", func(t testing.TB, files map[string]string) {
			files[op(t, files, "fused_adam")] = assembled(t, Op{Name: "fused_adam"})
		}, "archs: no op has device code, but the manifest says SASS for 8.0 and PTX for nothing"},
		{"instructions of no level", func(t testing.TB, files map[string]string) {
			files[op(t, files, "cpu_adam")] = assembled(t, Op{Name: "cpu_adam", Code: "aesenc %xmm1, %xmm2"})
		}, "CPU level: op cpu_adam has instructions outside all CPU levels: aes"},
		{"op for another machine", func(t testing.TB, files map[string]string) {
			name := op(t, files, "cpu_adam")
			elf := []byte(files[name])
			elf[18] = 183 // EM_AARCH64
			files[name] = string(elf)
		}, "CPU level: op cpu_adam has code for aarch64, the manifest says x86-64-v3"},
		{"another string ABI", func(t testing.TB, files map[string]string) {
			replace(t, files, Member(t, files, wheel.ManifestName), `"cxx11abi": true`, `"cxx11abi": false`)
		}, "libraries: the extensions have _GLIBCXX_USE_CXX11_ABI=true, but the manifest says false"},
		{"manifest of another Python", func(t testing.TB, files map[string]string) {
			replace(t, files, Member(t, files, wheel.ManifestName), `"python": "3.11"`, `"python": "3.10"`)
		}, "metadata: the wheel is for Python 3.11, but the manifest says 3.10"},
		{"newer glibc", func(t testing.TB, files map[string]string) {
			files[op(t, files, "cpu_adam")] = assembled(t, Op{Name: "cpu_adam", Code: "call fcntl64@PLT"})
		}, "libraries: the extensions need glibc 2.28, but the manifest says 2.14"},
		{"newer glibc than its tag", func(t testing.TB, files map[string]string) {
			files[op(t, files, "cpu_adam")] = assembled(t, Op{Name: "cpu_adam", Code: "call fcntl64@PLT"})
		}, "tags: tagged manylinux_2_17_x86_64, needs glibc 2.28, GLIBCXX nothing, CXXABI nothing and libgcc nothing, which requires manylinux_2_28_x86_64"},
	}
}

// damagedWords returns changes to the wheel's claims: they then differ from its content.
func damagedWords() []Damage {
	return []Damage{
		{"RECORD edited", func(t testing.TB, files map[string]string) {
			record := strings.TrimSuffix(Member(t, files, ".dist-info/METADATA"), "METADATA") + "RECORD"
			rows := recordOf(files, record)
			i := strings.Index(rows, "deepspeed/version.py,sha256=") + len("deepspeed/version.py,sha256=")
			other := "A"
			if rows[i] == 'A' {
				other = "B"
			}
			files[record] = rows[:i] + other + rows[i+1:]
		}, "RECORD: deepspeed/version.py: its sha256 is"},
		{"torch pin changed", func(t testing.TB, files map[string]string) {
			replace(t, files, Member(t, files, ".dist-info/METADATA"), "torch<2.16,>=2.15", "torch>=2.0.0")
		}, "metadata: METADATA requires torch>=2.0.0, but the ops were compiled for torch<2.16,>=2.15"},
		{"torch pin removed", func(t testing.TB, files map[string]string) {
			replace(t, files, Member(t, files, ".dist-info/METADATA"), "Requires-Dist: torch<2.16,>=2.15\n", "")
		}, "metadata: METADATA requires nothing"},
		{"torch required again, by a marker that always holds", func(t testing.TB, files map[string]string) {
			replace(t, files, Member(t, files, ".dist-info/METADATA"), "Requires-Dist: torch<2.16,>=2.15\n",
				"Requires-Dist: torch<2.16,>=2.15\nRequires-Dist: torch==2.0; extra == \"x\" or python_version > \"3\"\n")
		}, "metadata: METADATA requires torch<2.16,>=2.15, torch==2.0; extra"},
		{"torch required again, from elsewhere", func(t testing.TB, files map[string]string) {
			replace(t, files, Member(t, files, ".dist-info/METADATA"), "Requires-Dist: torch<2.16,>=2.15\n",
				"Requires-Dist: torch<2.16,>=2.15\nRequires-Dist: torch@https://example.org/torch.whl\n")
		}, "metadata: METADATA requires torch<2.16,>=2.15, torch @ https://example.org/torch.whl"},
		{"metadata in an older format", func(t testing.TB, files map[string]string) {
			files["deepspeed.egg-info"] = "Metadata-Version: 2.1\nName: deepspeed\nVersion: 9\n"
		}, "metadata: deepspeed.egg-info is additional metadata"},
		{"another torch", func(t testing.TB, files map[string]string) {
			replace(t, files, "deepspeed/git_version_info_installed.py", "'version': '2.15'", "'version': '2.14'")
		}, "metadata: the wheel is for torch 2.14, but the manifest says 2.15.0"},
		{"WHEEL retagged", func(t testing.TB, files map[string]string) {
			replace(t, files, Member(t, files, ".dist-info/WHEEL"), "manylinux_2_17", "manylinux_2_5")
		}, "tags: the file name has tag cp311-cp311-manylinux_2_17_x86_64, but WHEEL does not"},
		{"SBOM edited", func(t testing.TB, files map[string]string) {
			sum := sha256.Sum256([]byte(files[op(t, files, "cpu_adam")]))
			replace(t, files, Member(t, files, wheel.SBOMName), hex.EncodeToString(sum[:]), strings.Repeat("0", 64))
		}, "SBOM: lists sha256 " + strings.Repeat("0", 64) + " for deepspeed/ops/adam/cpu_adam_op"},
		{"SBOM removed", func(t testing.TB, files map[string]string) {
			delete(files, Member(t, files, wheel.SBOMName))
		}, "SBOM: missing from the wheel"},
		{"manifest of another name", func(t testing.TB, files map[string]string) {
			replace(t, files, Member(t, files, wheel.ManifestName), `"name": "deepspeed-0.19.8`, `"name": "deepspeed-0.19.7`)
		}, "metadata: file name differs from the manifest's"},
	}
}

// Member returns the one file of a wheel whose name ends in ending.
func Member(t testing.TB, files map[string]string, ending string) string {
	t.Helper()
	for name := range files {
		if strings.HasSuffix(name, ending) {
			return name
		}
	}
	t.Fatalf("no file %s", ending)
	return ""
}

// op returns the file of a wheel that holds an op.
func op(t testing.TB, files map[string]string, name string) string {
	t.Helper()
	return Member(t, files, name+"_op.cpython-311-x86_64-linux-gnu.so")
}

// assembled returns the shared object of an op.
func assembled(t testing.TB, o Op) string { return string(o.assemble(t, wheel.X86)) }

func replace(t testing.TB, files map[string]string, name, old, by string) {
	t.Helper()
	if !strings.Contains(files[name], old) {
		t.Fatalf("%s does not hold %q:\n%s", name, old, files[name])
	}
	files[name] = strings.Replace(files[name], old, by, 1)
}
