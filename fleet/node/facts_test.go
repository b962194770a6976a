package node_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/base64"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
)

// probe asks this machine.
func probe(t *testing.T, runner local, opt node.ProbeOptions) node.Facts {
	t.Helper()
	f, err := node.Probe(context.Background(), runner, opt)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// with is the environment of this process with other variables.
func with(vars ...string) []string { return append(os.Environ(), vars...) }

func TestDistributionsAreThoseOfImportlib(t *testing.T) {
	t.Parallel()
	python, site := venv(t)
	head := "Metadata-Version: 2.1\n"
	write(t, filepath.Join(site, "Plain_Name-1.0.dist-info", "METADATA"), head+"Name: Plain.Name\nVersion: 1.0\n\nName: of the description\nVersion: 9\n")
	write(t, filepath.Join(site, "carriage-1.0.dist-info", "METADATA"), "Metadata-Version: 2.1\r\nname:carriage\r\nVERSION:  2.0\r\n\r\ntext\r\n")
	write(t, filepath.Join(site, "late-1.0.dist-info", "METADATA"), head+strings.Repeat("Classifier: of many\n", 300)+"Name: late\nVersion: 3.1\n")
	write(t, filepath.Join(site, "file-4.egg-info"), head+"Name: file\nVersion: 4\n")
	write(t, filepath.Join(site, "folder-5.egg-info", "PKG-INFO"), head+"Name: folder\nVersion: 5\n")
	// Broken: no metadata, an empty one, one without a version.
	write(t, filepath.Join(site, "gone-1.dist-info", "RECORD"), "")
	write(t, filepath.Join(site, "empty-1.dist-info", "METADATA"), "")
	write(t, filepath.Join(site, "nameless-1.dist-info", "METADATA"), head+"Version: 1\n")
	// Editable: of old by a link and a path, of new by a dist-info and a path.
	source := filepath.Join(t.TempDir(), "src")
	write(t, filepath.Join(source, "editable.egg-info", "PKG-INFO"), head+"Name: editable\nVersion: 0.1.dev0\n")
	write(t, filepath.Join(site, "editable.egg-link"), source+"\n.")
	write(t, filepath.Join(site, "easy-install.pth"), source+"\n")
	write(t, filepath.Join(site, "modern-7.dist-info", "METADATA"), head+"Name: modern\nVersion: 7\n")
	write(t, filepath.Join(site, "_modern.pth"), source+"\n")
	// An egg as a folder, one as a file, and what wins because it comes first.
	write(t, filepath.Join(site, "old-8-py3.egg", "EGG-INFO", "PKG-INFO"), head+"Name: old\nVersion: 8\n")
	write(t, filepath.Join(site, "zz.pth"), "old-8-py3.egg\nzipped-9-py3.egg\n")
	zipEgg(t, filepath.Join(site, "zipped-9-py3.egg"))
	write(t, filepath.Join(site, "zzz.pth"), "import pathlib, sys; sys.path.append(pathlib.Path('/x'))\n") // no import looks there
	first := t.TempDir()
	write(t, filepath.Join(first, "folder-55.dist-info", "METADATA"), head+"Name: Folder\nVersion: 55\n")
	env := with("PYTHONPATH=" + first)

	cmd := exec.Command(python, "-c", `
import json, re, sys
from importlib import metadata
sys.path = sys.path[1:]
found = {}
for d in metadata.distributions():
    try:
        name, version = d.metadata["Name"], d.version
    except Exception:
        continue
    if name and version:
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
print(json.dumps(found))`)
	cmd.Env = env
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]string
	if err := json.Unmarshal(out, &want); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"plain-name", "carriage", "late", "file", "folder", "editable", "modern", "old", "zipped"} {
		if want[name] == "" {
			t.Errorf("importlib does not find %s", name)
		}
	}
	// What pip leaves behind when it cannot remove what it has replaced is not installed.
	write(t, filepath.Join(site, "~lain_Name-0.9.dist-info", "METADATA"), head+"Name: Plain.Name\nVersion: 0.9\n")
	// importlib cannot read this one, but it can be imported.
	write(t, filepath.Join(site, "latin-6.dist-info", "METADATA"), head+"Name: latin\nVersion: 6\nAuthor: J\xe9r\xf4me\n")
	want["latin"] = "6"
	got := probe(t, local{env: env}, node.ProbeOptions{Python: python}).Dists
	if !maps.Equal(got, want) {
		t.Errorf("distributions %v\nwant %v", got, want)
	}
}

// zipEgg makes an egg that is a file.
func zipEgg(t *testing.T, path string) {
	t.Helper()
	out, err := exec.Command("python3", "-c", `import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as z:
    z.writestr("EGG-INFO/PKG-INFO", "Metadata-Version: 2.1\nName: zipped\nVersion: 9\n")`, path).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestProbeReadsWhatTorchIsMadeOf(t *testing.T) {
	t.Parallel()
	python, site := venv(t)
	put := func(name, text string) { write(t, filepath.Join(site, name), text) }
	abi := func() *bool { return probe(t, local{}, node.ProbeOptions{Python: python}).CXX11ABI }
	put("torch/version.py", "from typing import Optional\n__all__ = ['__version__']\n__version__ = '2.6.0a0+cu124.d2026'\ncuda: Optional[str] = '12.4'\n")
	put("torch/share/cmake/Torch/TorchConfig.cmake", `  set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")`+"\n")
	if got := abi(); got == nil || *got {
		t.Errorf("the old ABI by CMake: %v", got)
	}
	put("torch/share/cmake/Torch/TorchConfig.cmake", "if(ON)\n")
	for name, want := range map[string]*bool{
		"_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE": new(true),
		"_ZN3c105ErrorC2ENS_14SourceLocationESs_and_what_follows":                                  new(false),
		"_ZN3c105ErrorC2ENS_14SourceLocationEPKc_a_new_signature":                                  nil,
	} {
		// Across the border of two blocks, too.
		for _, before := range []int{0, 65536 - 40, 65536 - 10, 1_400_000} {
			put("torch/lib/libc10.so", strings.Repeat("x", before)+"\x00"+name+"\x00")
			if got := abi(); !reflect.DeepEqual(got, want) {
				t.Errorf("%s behind %d bytes: %v", name, before, got)
			}
		}
	}
	nccl := func() string { return probe(t, local{}, node.ProbeOptions{Python: python}).NCCL }
	put("torch/lib/libnccl.so.2.21.5", "")
	if got := nccl(); got != "2.21.5" {
		t.Errorf("NCCL beside torch: %q", got)
	}
	put("nvidia_nccl_cu13-2.30.7.dist-info/METADATA", "Name: nvidia-nccl-cu13\nVersion: 2.30.7\n")
	put("nvidia_nccl_cu12-2.24.0.dist-info/METADATA", "Name: nvidia-nccl-cu12\nVersion: 2.24.0\n")
	put("transformers-4.57.0.dist-info/METADATA", "Name: transformers\nVersion: 4.57.0\n")
	f := probe(t, local{}, node.ProbeOptions{Python: python})
	if f.Torch != "2.6.0a0" || f.TorchBuild != "cu124.d2026" || f.TorchCUDA != "12.4" || f.NCCL != "2.24.0" || f.Transformers != "4.57.0" || f.Environment != "venv" {
		t.Errorf("torch %q, build %q, CUDA %q, NCCL %q, transformers %q, %s", f.Torch, f.TorchBuild, f.TorchCUDA, f.NCCL, f.Transformers, f.Environment)
	}
	// A conda environment is one by its records, and has its NCCL there.
	prefix := filepath.Dir(filepath.Dir(python))
	if err := os.Rename(filepath.Join(prefix, "pyvenv.cfg"), filepath.Join(prefix, "was.cfg")); err != nil {
		t.Fatal(err)
	}
	f = probe(t, local{}, node.ProbeOptions{Python: python})
	if f.Environment != "system" && f.Environment != "conda" || strings.HasPrefix(f.Prefix, prefix) {
		t.Errorf("without pyvenv.cfg: %s in %s", f.Environment, f.Prefix)
	}
}

func TestLibstdcxxIsTheOneTheLoaderFinds(t *testing.T) {
	t.Parallel()
	python, _ := venv(t)
	out, err := exec.Command(python, "-c", `import ctypes
ctypes.CDLL("libstdc++.so.6")
print([line.split()[-1] for line in open("/proc/self/maps") if "libstdc++" in line][0])`).Output()
	if err != nil {
		t.Skip("this machine has no libstdc++")
	}
	if got, want := probe(t, local{}, node.ProbeOptions{Python: python}).Libstdcxx, newest(t, strings.TrimSpace(string(out))); got != want {
		t.Errorf("libstdc++ %q, the loaded one has %q", got, want)
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	head := self[:64]
	foreign := slices.Clone(head)
	foreign[18]++ // another machine
	dir, other := t.TempDir(), t.TempDir()
	names := "GLIBCXX_3.4\x00GLIBCXX_3.4.9\x00GLIBCXX_3.4.99\x00GLIBCXX_3.4.100broken GLIBCXX_LDBL_3.4.7\x00GLIBCXX_TUNABLES\x00"
	write(t, filepath.Join(dir, "libstdc++.so.6"), string(head)+strings.Repeat("x", 65536-70)+names+strings.Repeat("y", 70_000))
	write(t, filepath.Join(other, "libstdc++.so.6"), string(foreign)+"GLIBCXX_3.4.200\x00")
	env := with("LD_LIBRARY_PATH=" + other + ":" + dir)
	if got := probe(t, local{env: env}, node.ProbeOptions{Python: python}).Libstdcxx; got != "3.4.99" {
		t.Errorf("by LD_LIBRARY_PATH: %q", got)
	}
	// conda's own goes before everything else.
	prefix := filepath.Dir(filepath.Dir(python))
	write(t, filepath.Join(prefix, "conda-meta", "history"), "")
	write(t, filepath.Join(prefix, "lib", "libstdc++.so.6"), string(head)+"GLIBCXX_3.4.33\x00")
	if got := probe(t, local{env: env}, node.ProbeOptions{Python: python}).Libstdcxx; got != "3.4.33" {
		t.Errorf("conda's: %q", got)
	}
}

// newest is the newest GLIBCXX among the strings of a library, read by Go.
func newest(t *testing.T, path string) string {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, err := f.Section(".dynstr").Data()
	if err != nil {
		t.Fatal(err)
	}
	best := 0
	for _, m := range regexp.MustCompile(`GLIBCXX_3\.4\.(\d+)\x00`).FindAllSubmatch(data, -1) {
		n, _ := strconv.Atoi(string(m[1]))
		best = max(best, n)
	}
	return "3.4." + strconv.Itoa(best)
}

// install puts a DeepSpeed with a RECORD into site.
func install(t *testing.T, site string, files map[string]string) {
	t.Helper()
	record := ""
	for _, name := range slices.Sorted(maps.Keys(files)) {
		write(t, filepath.Join(site, name), files[name])
		sum := sha256.Sum256([]byte(files[name]))
		record += name + ",sha256=" + base64.RawURLEncoding.EncodeToString(sum[:]) + "," + strconv.Itoa(len(files[name])) + "\n"
	}
	info := filepath.Join(site, "deepspeed-0.19.8+x.dist-info")
	write(t, filepath.Join(info, "METADATA"), "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.19.8+x\n")
	write(t, filepath.Join(info, "RECORD"), record+"deepspeed-0.19.8+x.dist-info/RECORD,,\n")
}

func TestProbeReadsDeepSpeedsBuildRecord(t *testing.T) {
	t.Parallel()
	python, site := venv(t)
	for name, c := range map[string]struct {
		text  string
		ops   []string
		build *node.Build
	}{
		"0.19": {
			"version='0.19.8'\ngit_hash='unknown'\ninstalled_ops={'async_io': False, 'fused_adam': 1, 'utils': True, 'cpu_adam': 1}\naccelerator_name='cuda'\n" +
				"torch_info={'version': '2.15', 'bf16_support': False, 'cuda_version': '13.2', 'nccl_version': '2.30', 'hip_version': '0.0'}\n",
			[]string{"cpu_adam", "fused_adam", "utils"},
			&node.Build{Torch: "2.15", CUDA: "13.2", NCCL: "2.30", Accelerator: "cuda"},
		},
		"for the CPU": {
			"installed_ops={\"cpu_adam\": 1,\n \"utils\": 0}\naccelerator_name = \"cpu\"\ntorch_info={'version': '2.6', 'cuda_version': '0.0', 'nccl_version': None}\n",
			[]string{"cpu_adam"},
			&node.Build{Torch: "2.6", Accelerator: "cpu"},
		},
		"old":  {"installed_ops={'cpu_adam': True}\n", []string{"cpu_adam"}, nil},
		"none": {"", []string{}, nil},
		"of dsbuild's": {
			"from deepspeed import _stable_abi\n\nversion='0.19.8'\ninstalled_ops={'cpu_adam': 1, 'dc': False, 'fused_adam': 1}\n" +
				"accelerator_name, installed_ops = _stable_abi.accelerator(installed_ops, ('fused_adam',))\n" +
				"torch_info=_stable_abi.torch_info({'version': '2.15', 'hip_version': '0.0'}, ('12', '13'))\n",
			[]string{"cpu_adam", "fused_adam"},
			nil,
		},
		"code": {"installed_ops=f()\ntorch_info=dict(version='1')\n", []string{}, nil},
	} {
		install(t, site, map[string]string{"deepspeed/git_version_info_installed.py": c.text})
		f := probe(t, local{}, node.ProbeOptions{Python: python})
		if f.DeepSpeed == nil || !slices.Equal(f.DeepSpeed.Ops, c.ops) || !reflect.DeepEqual(f.DeepSpeed.Build, c.build) {
			t.Errorf("%s: %+v, build %+v", name, f.DeepSpeed, f.DeepSpeed.Build)
		}
		for cuda, lacks := range map[string]bool{"": true, "12.8": false, "13.2": false, "14.0": true} {
			m, stable := f.DeepSpeed.Manifest(cuda), name == "of dsbuild's"
			if got := m.OpsFor(cuda); m.TorchABI.IsStable() != stable || len(got) != len(c.ops)-map[bool]int{true: 1}[stable && lacks] {
				t.Errorf("%s, CUDA %q: %q, %+v", name, cuda, got, m)
			}
		}
	}
}

func TestProbeComparesFilesOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	python, site := venv(t)
	install(t, site, map[string]string{"deepspeed/__init__.py": "", "deepspeed/ops/adam.py": "x = 1\n", "deepspeed/gone.py": "y = 2\n"})
	record, err := os.ReadFile(filepath.Join(site, "deepspeed-0.19.8+x.dist-info", "RECORD"))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(record)
	noted, err := json.Marshal(map[string]any{"record": hex(sum[:]), "sha256": "of the \"wheel\" é", "extra_wheels": []any{}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(site, ".dsbuild", "installed.json"), string(noted)+"\n")
	ask := func(files bool, of ...string) *node.Installed {
		return probe(t, local{}, node.ProbeOptions{Python: python, Files: files, Of: of}).DeepSpeed
	}
	if d := ask(true); !d.Intact || len(d.Altered) > 0 || d.SHA256 != "of the \"wheel\" é" || d.Record != hex(sum[:]) {
		t.Errorf("as installed: %+v", d)
	}
	if d := ask(false); d.Intact || d.Altered != nil || d.SHA256 == "" {
		t.Errorf("not asked: %+v", d)
	}
	if d := ask(true, "another"); d.Intact || d.Altered != nil || d.SHA256 == "" {
		t.Errorf("asked of another wheel: %+v", d)
	}
	if d := ask(true, "another", "of the \"wheel\" é"); !d.Intact || len(d.Altered) > 0 {
		t.Errorf("asked of this wheel: %+v", d)
	}
	write(t, filepath.Join(site, "deepspeed", "ops", "adam.py"), "x = 2\n")
	if err := os.Remove(filepath.Join(site, "deepspeed", "gone.py")); err != nil {
		t.Fatal(err)
	}
	if d := ask(true); d.Intact || !slices.Equal(d.Altered, []string{"deepspeed/gone.py", "deepspeed/ops/adam.py"}) {
		t.Errorf("edited by hand: %+v", d)
	}
}

func hex(b []byte) string {
	const digits = "0123456789abcdef"
	var out bytes.Buffer
	for _, c := range b {
		out.WriteByte(digits[c>>4])
		out.WriteByte(digits[c&15])
	}
	return out.String()
}

// fakeSMI is a folder with an nvidia-smi that is a shell script.
func fakeSMI(t *testing.T, script string) string {
	t.Helper()
	bin := t.TempDir()
	write(t, filepath.Join(bin, "nvidia-smi"), "#!/bin/sh\n"+script)
	if err := os.Chmod(filepath.Join(bin, "nvidia-smi"), 0o755); err != nil {
		t.Fatal(err)
	}
	return bin
}

// oldSMI knows no compute_cap, as those of drivers before 510.
const oldSMI = `case $1 in
--query-gpu=*compute_cap*) printf 'Field "compute_cap" is not a valid field to query.\n\n'; exit 2 ;;
-L) echo 'GPU 0: Tesla V100-SXM2-16GB (UUID: GPU-1)'; echo '  MIG 1g.5gb Device 0: (UUID: MIG-2)'; echo 'GPU 1: NVIDIA A100 80GB PCIe (UUID: GPU-3)' ;;
*) exit 1 ;;
esac
`

func TestGPUsByNameWhereTheDriverIsOld(t *testing.T) {
	t.Parallel()
	env := with("PATH=" + fakeSMI(t, oldSMI) + ":" + os.Getenv("PATH"))
	want := []node.GPU{{Name: "Tesla V100-SXM2-16GB"}, {Name: "NVIDIA A100 80GB PCIe"}}
	for what, python := range map[string]string{"with Python": "python3", "without": "/nowhere/python"} {
		f := probe(t, local{env: env}, node.ProbeOptions{Python: python})
		if !slices.Equal(f.GPUs, want) || !slices.Contains(f.Missing, "compute capability") {
			t.Errorf("%s: %+v, missing %q", what, f.GPUs, f.Missing)
		}
	}
}

func TestGPUsWithoutPython(t *testing.T) {
	t.Parallel()
	bin := fakeSMI(t, "[ \"$LC_ALL\" = C ] && printf 'NVIDIA A100-SXM4-80GB, 8.0, 580.65.06\\nNVIDIA * X, [N/A], 580.65.06\\n'\nexit 14\n")
	f := probe(t, local{env: with("PATH=" + bin + ":" + os.Getenv("PATH"))}, node.ProbeOptions{Python: "/nowhere/python"})
	if want := []node.GPU{{Name: "NVIDIA A100-SXM4-80GB", Arch: "8.0"}, {Name: "NVIDIA * X"}}; !slices.Equal(f.GPUs, want) || f.Driver != "580.65.06" {
		t.Errorf("%+v, driver %q", f.GPUs, f.Driver)
	}
}

func TestOldPythonsAnswer(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	found, _ := filepath.Glob(filepath.Join(os.Getenv("HOME"), ".pyenv", "versions", "*", "bin", "python"))
	for _, python := range found {
		version := filepath.Base(filepath.Dir(filepath.Dir(python)))
		f := probe(t, local{}, node.ProbeOptions{Python: python})
		old := strings.HasPrefix(version, "2.") || strings.HasPrefix(version, "3.6") || strings.HasPrefix(version, "3.7")
		if f.Python != version || f.Glibc == "" || f.CPU == "" || old != (len(f.Missing) > 0 && strings.HasPrefix(f.Missing[0], "python 3.8 or later")) {
			t.Errorf("%s: %+v", version, f)
		}
		again := probe(t, local{}, node.ProbeOptions{Python: python, Files: true})
		and, undone, err := node.ProbeWithFollowUp(t.Context(), local{}, python, node.FollowUp{Program: node.NewFollowUp(programOf("f'{1:=2}'")), Each: func(json.RawMessage) error { return nil }})
		if err != nil || undone != nil || !slices.Equal(f.Missing, again.Missing) || !slices.Equal(f.Missing, and.Missing) {
			t.Errorf("%s: %q, comparing files %q, with a follow-up %q (%v), %v", version, f.Missing, again.Missing, and.Missing, undone, err)
		}
	}
}

func TestContainersAreNamed(t *testing.T) {
	t.Parallel()
	for name, env := range map[string]string{"apptainer": "APPTAINER_CONTAINER=/x.sif", "singularity": "SINGULARITY_CONTAINER=/x.sif"} {
		if f := probe(t, local{env: with(env)}, node.ProbeOptions{}); f.Container != name {
			t.Errorf("%s: %q", name, f.Container)
		}
	}
}
