//go:build full

package index_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/index"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// gpuNode is a simulated node: uv gets its GPU and driver by the variables of the provider, and
// its CPU by another /proc/cpuinfo, which uv has Python read.
type gpuNode struct {
	arch string // "": no GPU
	cuda string // of the driver
	cpu  wheel.CPULevel
}

func (n gpuNode) String() string { return fmt.Sprintf("GPU %q, CUDA %s, %s", n.arch, n.cuda, n.cpu) }

func gpuNodes() []gpuNode {
	var all []gpuNode
	for _, cpu := range []wheel.CPULevel{wheel.CPUv2, wheel.CPUv3, wheel.CPUv4} {
		all = append(all, gpuNode{cpu: cpu})
		for _, arch := range []string{"7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"} {
			for _, cuda := range []string{"12.8", "13.0", "13.2"} {
				all = append(all, gpuNode{arch, cuda, cpu})
			}
		}
	}
	return all
}

// facts are what a probe would say.
func (n gpuNode) facts(t *testing.T, tables *compat.Tables) node.Facts {
	t.Helper()
	f := node.Facts{Python: "3.11.7", Tag: "cp311", Platform: "linux_x86_64", Glibc: "2.36", CPU: string(n.cpu), Torch: "2.15.0", TorchCUDA: "13.2"}
	if n.arch == "" {
		return f
	}
	i := slices.IndexFunc(tables.CUDAs, func(row compat.CUDA) bool { return row.Version == n.cuda })
	if i < 0 {
		t.Fatalf("the tables have no CUDA %s", n.cuda)
	}
	f.Driver, f.GPUs = tables.CUDAs[i].PTXDriver, []node.GPU{{Name: "GPU", Arch: n.arch}}
	return f
}

// candidate is a wheel that fits a node.
type candidate struct {
	name    string
	ops     int // that the node can use
	remarks int
	cpu     string
}

// bestOf returns the wheels that compat.Fit accepts with the most usable operators, then with the
// fewest remarks, then for the highest CPU level: the order of deploy.
func bestOf(tables *compat.Tables, manifests []wheel.Manifest, f node.Facts) []string {
	var fits []candidate
	for _, m := range manifests {
		v := tables.Fit(m, f)
		if !v.OK() {
			continue
		}
		c := candidate{m.Name, len(m.Ops), len(v.Remarks), m.CPU}
		if len(f.GPUs) == 0 && len(m.Archs)+len(m.PTX) > 0 {
			c.ops = 1 // cpu_adam
		}
		fits = append(fits, c)
	}
	order := func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.ops, a.ops), cmp.Compare(a.remarks, b.remarks), cmp.Compare(b.cpu, a.cpu))
	}
	slices.SortFunc(fits, order)
	var best []string
	for _, c := range fits {
		if order(c, fits[0]) == 0 {
			best = append(best, c.name)
		}
	}
	return best
}

// Stock uv, with its preview feature, chooses on each node the wheel that compat.Fit calls the
// best. Without the feature, uv and pip get the wheel that runs everywhere, or none.
func TestFullPublishVariants(t *testing.T) {
	tools := filepath.Join(t.TempDir(), "tools")
	program(t, nil, "python3", "-m", "venv", tools)
	bin := filepath.Join(tools, "bin") + "/"
	program(t, nil, bin+"pip", "install", "-q", "uv>=0.13.6")
	cpus := cpuInfos(t)
	var wheels []string
	for _, cpu := range []wheel.CPULevel{wheel.CPUv2, wheel.CPUv3, wheel.CPUv4} {
		for _, op := range [][]wheeltest.Op{nil, {{Name: "fused_adam", Dir: "adam", SASS: []string{"8.0"}}}, {{Name: "fused_adam", Dir: "adam", SASS: []string{"9.0"}, PTX: []string{"9.0"}}}} {
			ops := append([]wheeltest.Op{{Name: "cpu_adam", Dir: "adam"}}, op...)
			wheels = append(wheels, build(t, t.TempDir(), wheeltest.Options{Ops: ops, CPU: cpu}, evening))
		}
	}
	dir := t.TempDir()
	sum := write(t, index.Options{Dir: dir, Wheels: wheels, Variants: true})
	if len(sum.Variants) != 1 || len(sum.Variants[0].Variants) != 13 {
		t.Fatalf("%+v", sum.Variants)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer server.Close()
	address := server.URL + "/" + sum.Variants[0].Name + "/"
	sources := map[string]string{}
	for _, v := range sum.Variants[0].Variants {
		sources[v.Label] = v.From
	}
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	var manifests []wheel.Manifest
	for _, w := range wheels {
		m, err := wheel.ReadManifest(w)
		if err != nil {
			t.Fatal(err)
		}
		manifests = append(manifests, m)
	}
	chosen := map[string]int{}
	for _, n := range gpuNodes() {
		want := bestOf(tables, manifests, n.facts(t, tables))
		label, out, err := n.install(t, cpus, bin, address)
		if err != nil || !slices.Contains(want, sources[label]) {
			t.Errorf("%s: uv chose %q, which is %s; compat.Fit prefers %s (%v)\n%s", n, label, sources[label], want, err, out)
		}
		chosen[label]++
	}
	if len(chosen) < 9 {
		t.Errorf("only %v were chosen", chosen)
	}
	if !t.Failed() {
		t.Logf("result: simulated nodes on which stock uv chose as compat.Fit: %d of %d", len(gpuNodes()), len(gpuNodes()))
	}
	others(t, bin, address)
	withoutPlain := t.TempDir()
	write(t, index.Options{Dir: withoutPlain, Wheels: wheels[3:], Variants: true})
	refused := httptest.NewServer(http.FileServer(http.Dir(withoutPlain)))
	defer refused.Close()
	for _, tool := range plainTools(bin) {
		if label, out, err := installBy(t, nil, tool, refused.URL+"/"+sum.Variants[0].Name+"/"); err == nil {
			t.Errorf("%s has installed %q, though there is no plain wheel\n%s", tool[0], label, out)
		}
	}
}

// plainTools are installers that know no variants.
func plainTools(bin string) [][]string {
	return [][]string{{bin + "pip", "install"}, {bin + "uv", "pip", "install", "--no-cache", "--python", bin + "python"}}
}

// others installs with pip, and with uv without its preview feature.
func others(t *testing.T, bin, address string) {
	t.Helper()
	for _, tool := range plainTools(bin) {
		if label, out, err := installBy(t, nil, tool, address); err != nil || label != "" {
			t.Errorf("%s has installed %q, %v\n%s", tool[0], label, err, out)
		}
	}
}

// install installs DeepSpeed by uv as on this node, and returns the label of the wheel.
func (n gpuNode) install(t *testing.T, cpus map[wheel.CPULevel]string, bin, address string) (label, out string, err error) {
	t.Helper()
	var env []string
	if n.arch != "" {
		env = []string{"NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION=" + n.cuda, "NV_VARIANT_PROVIDER_FORCE_SM_ARCH=" + n.arch}
	}
	tool := []string{bin + "uv", "pip", "install", "--no-cache", "--python", bin + "python", "--preview-features", "wheel-variants"}
	if file := cpus[n.cpu]; file != "" {
		mounts := "-m"
		if os.Getuid() != 0 {
			mounts = "-rm"
		}
		tool = append([]string{"unshare", mounts, "sh", "-c", `mount --bind "$0" /proc/cpuinfo && exec "$@"`, file}, tool...)
	}
	return installBy(t, env, tool, address)
}

// installBy runs an installer, and returns the label of the installed wheel, "" of a plain one.
func installBy(t *testing.T, env, tool []string, address string) (label, out string, err error) {
	t.Helper()
	dir := t.TempDir()
	args := append(slices.Clone(tool[1:]), "--no-deps", "--target", dir, "--index-url", address, "deepspeed")
	cmd := exec.CommandContext(t.Context(), tool[0], args...)
	cmd.Env = append(os.Environ(), env...)
	text, err := cmd.CombinedOutput()
	if err != nil {
		return "", string(text), err
	}
	infos, err := filepath.Glob(filepath.Join(dir, "deepspeed-*.dist-info"))
	if err == nil && len(infos) != 1 {
		err = errors.New("nothing was installed")
	}
	if err != nil {
		return "", string(text), err
	}
	description, err := os.ReadFile(filepath.Join(infos[0], wheel.VariantName))
	if errors.Is(err, os.ErrNotExist) {
		return "", string(text), nil
	}
	var said struct{ Variants map[string]any }
	if err == nil {
		err = json.Unmarshal(description, &said)
	}
	for label = range said.Variants {
	}
	return label, string(text), err
}

// cpuInfos writes the /proc/cpuinfo of CPUs of three levels, and returns the files by level. It changes
// the flags of this machine's: uv reads the level of a CPU there, and runs nothing that needs it.
func cpuInfos(t *testing.T) map[wheel.CPULevel]string {
	t.Helper()
	text, err := os.ReadFile("/proc/cpuinfo")
	flags := regexp.MustCompile(`(?m)^flags\s*:.*$`)
	if err != nil || !flags.Match(text) {
		t.Fatalf("/proc/cpuinfo has no flags (%v)", err)
	}
	v2 := regexp.MustCompile(` (avx512\w+|avx2?|bmi[12]|f16c|fma|abm|movbe)\b`).ReplaceAllString(string(text), "")
	v3 := flags.ReplaceAllString(v2, "$0 avx avx2 bmi1 bmi2 f16c fma abm movbe")
	v4 := flags.ReplaceAllString(v3, "$0 avx512f avx512bw avx512cd avx512dq avx512vl")
	files := map[wheel.CPULevel]string{}
	for level, text := range map[wheel.CPULevel]string{wheel.CPUv2: v2, wheel.CPUv3: v3, wheel.CPUv4: v4} {
		files[level] = filepath.Join(t.TempDir(), "cpuinfo")
		if err := os.WriteFile(files[level], []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// program runs a program, which must succeed.
func program(t *testing.T, env []string, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, strings.TrimSpace(string(out)))
	}
}
