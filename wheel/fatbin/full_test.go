//go:build full

package fatbin

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// cuda returns a tool of the CUDA toolkit that DSBUILD_TEST_CUDA_HOME names.
func cuda(t *testing.T, tool string) string {
	home := os.Getenv("DSBUILD_TEST_CUDA_HOME")
	if home == "" {
		t.Skip("DSBUILD_TEST_CUDA_HOME names no CUDA toolkit")
	}
	path := filepath.Join(home, "bin", tool)
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// What nvcc writes, for every way it has of writing it.
func TestNVCC(t *testing.T) {
	nvcc, cuobjdump := cuda(t, "nvcc"), cuda(t, "cuobjdump")
	const few = "-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=[sm_90a,compute_90a] " +
		"-gencode arch=compute_100f,code=[sm_100f,compute_100f] "
	const all = few + "-gencode arch=compute_75,code=[sm_75,compute_75] -gencode arch=compute_89,code=sm_89 " +
		"-gencode arch=compute_90,code=sm_90 -gencode arch=compute_103a,code=sm_103a " +
		"-gencode arch=compute_120,code=[sm_120,compute_120] -gencode arch=compute_121a,code=[sm_121a,compute_121a]"
	cases := []struct {
		options string
		entries int
	}{
		{"-c -compress-mode=none " + all, 14},
		{"-c -compress-mode=default " + all, 14},
		{"-c -compress-mode=size " + all, 14},
		{"-c -compress-mode=speed " + all, 14},
		{"-c -compress-mode=balance " + few, 5},
		{"-c -no-compress " + few, 5},
		{"-c -G -g " + few, 5},
		{"-c -lineinfo " + few, 5},
		{"-fatbin " + few, 5},
		{"-c -gencode arch=compute_80,code=compute_80", 1},
		{"-c -rdc=true " + few, 5},
		{"-c -rdc=true -gencode arch=compute_80,code=[lto_80,sm_80] -gencode arch=compute_90a,code=lto_90a", 3},
		{"-shared -Xcompiler -fPIC " + few, 8}, // with an empty cubin that nvlink made for each GPU,
		{"-shared -Xcompiler -fPIC -rdc=true " + few, 8},
	}
	if help, _ := exec.Command(cuda(t, "fatbinary"), "--help").Output(); bytes.Contains(help, []byte("--concat")) {
		cases = append(cases, struct {
			options string
			entries int
		}{"-c -Xfatbin --concat " + all, 17})
	}
	dir := t.TempDir()
	source := filepath.Join(dir, "k.cu")
	kernel := `__global__ void add(float *a, int n) { int i = threadIdx.x; if (i < n) a[i] += 1; }
void go(float *a) { add<<<1, 32>>>(a, 32); }`
	if err := os.WriteFile(source, []byte(kernel), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, c := range cases {
		file := filepath.Join(dir, fmt.Sprintf("%d.out", i))
		args := append(strings.Fields(c.options), "-o", file, source)
		if out, err := exec.Command(nvcc, args...).CombinedOutput(); err != nil {
			t.Fatalf("nvcc %s: %v\n%s", c.options, err, out)
		}
		if n := compare(t, cuobjdump, file); n != c.entries {
			t.Errorf("nvcc %s: %d entries, want %d", c.options, n, c.entries)
		}
	}
}

// What is in testdata is still what cuobjdump says, where the file is whole
// and this cuobjdump knows its GPUs.
func TestFixtures(t *testing.T) {
	cuobjdump := cuda(t, "cuobjdump")
	sections, _ := filepath.Glob("testdata/cuda-1[23].*.fatbin")
	if len(sections) < 5 {
		t.Fatalf("%d sections of CUDA 12 and 13 in testdata", len(sections))
	}
	for _, file := range sections {
		compare(t, cuobjdump, file)
	}
}

// Every shared object below DSBUILD_TEST_CUDA_FILES, such as unpacked wheels.
// No cuobjdump reads all: 13 gives up on GPUs before sm_50 and on sm_90 as
// CUDA 12.1 wrote it, 12 knows no f and not the a in cubins of CUDA 13.
func TestFiles(t *testing.T) {
	root, cuobjdump := os.Getenv("DSBUILD_TEST_CUDA_FILES"), cuda(t, "cuobjdump")
	if root == "" {
		t.Skip("DSBUILD_TEST_CUDA_FILES names no folder of shared objects")
	}
	files, compared := 0, 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || len(sections(t, path)) == 0 {
			return err
		}
		files++
		name, _ := filepath.Rel(root, path)
		t.Run(name, func(t *testing.T) {
			if out, err := exec.Command(cuobjdump, "-all", "--list-elf", path).CombinedOutput(); err != nil {
				if why := givesUp.Find(out); why != nil {
					t.Skipf("cuobjdump: %s", why)
				}
			}
			compared++
			compare(t, cuobjdump, path)
		})
		return nil
	})
	if err != nil || compared == 0 {
		t.Errorf("%d of %d files with device code below %s were compared, %v", compared, files, root, err)
	}
	t.Logf("%d of %d files compared", compared, files)
}

// givesUp is what cuobjdump says of cubins it is too new for.
var givesUp = regexp.MustCompile(`Support for 'sm_\d+' has been removed|Invalid ELF`)

// sections returns what to scan of a file: of an ELF file its sections with
// fat binaries, and a .fatbin file as a whole.
func sections(t *testing.T, path string) [][]byte {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		if data := readFile(t, path); bytes.HasPrefix(data, []byte(u32s(magic))) {
			return [][]byte{data}
		}
		return nil
	}
	defer f.Close()
	var found [][]byte
	for _, s := range f.Sections {
		if s.Name != Executable && s.Name != Relocatable {
			continue
		}
		data, err := s.Data()
		if err != nil {
			t.Fatalf("%s: %s: %v", path, s.Name, err)
		}
		found = append(found, data)
	}
	return found
}

// compare holds what is in a file against all that cuobjdump says about it,
// and returns how many entries that are.
func compare(t *testing.T, cuobjdump, path string) int {
	t.Helper()
	var headers, elfs, ptxs []string
	for _, section := range sections(t, path) {
		entries, err := scan(section)
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		for _, e := range entries {
			name := cuobjdumpName(e)
			headers = append(headers, cubinName(name))
			switch e.Kind {
			case SASS:
				elfs = append(elfs, listed(strings.TrimPrefix(name, "elf ")))
			case PTX:
				ptxs = append(ptxs, strings.TrimPrefix(name, "ptx "))
			}
		}
	}
	said := dumped(t, cuobjdump, path)
	for i := range said {
		said[i] = cubinName(said[i])
	}
	equal(t, path, "headers", headers, said)
	equal(t, path, "--list-elf", elfs, lists(t, cuobjdump, path, "--list-elf"))
	equal(t, path, "--list-ptx", ptxs, lists(t, cuobjdump, path, "--list-ptx"))
	t.Logf("%s: %s", filepath.Base(path), counted(headers))
	return len(headers)
}

func equal(t *testing.T, path, what string, got, want []string) {
	t.Helper()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s: %s:\n%s\ncuobjdump says\n%s", path, what, counted(got), counted(want))
	}
}

// dumped returns the kind and the GPU of every header that cuobjdump prints.
func dumped(t *testing.T, cuobjdump, path string) []string {
	t.Helper()
	out, err := exec.Command(cuobjdump, "-all", "-ptx", path).Output()
	if err != nil {
		t.Errorf("cuobjdump -all -ptx %s: %v\n%s", path, err, stderr(err))
	}
	var found []string
	for _, m := range regexp.MustCompile(`(?m)^\s*(?:Fatbin (?:relocatable )?(.*) code:|arch = (\S+))$`).FindAllSubmatch(out, -1) {
		if len(m[2]) > 0 && len(found) > 0 {
			found[len(found)-1] += " " + string(m[2])
		} else {
			found = append(found, string(m[1]))
		}
	}
	return found
}

// lists returns the GPUs that cuobjdump puts into the names it lists.
func lists(t *testing.T, cuobjdump, path, option string) []string {
	t.Helper()
	out, err := exec.Command(cuobjdump, "-all", option, path).Output()
	if err != nil {
		t.Errorf("cuobjdump -all %s %s: %v\n%s", option, path, err, stderr(err))
	}
	var found []string
	for _, m := range regexp.MustCompile(`(?m)\.(sm_\w+)\.(cubin|ptx)$`).FindAllSubmatch(out, -1) {
		name := string(m[1])
		if string(m[2]) == "cubin" {
			name = listed(name)
		}
		found = append(found, name)
	}
	return found
}

// listed returns what a cubin's GPU is compared by: --list-elf takes it from
// the cubin, where there is no f, and where cuobjdump 12 sees an a on GPUs of
// before there was one.
func listed(sm string) string {
	number := strings.TrimRight(sm, "af")
	if strings.HasSuffix(sm, "f") || len(number) == len("sm_80") && number < "sm_90" {
		return number
	}
	return sm
}

func stderr(err error) []byte {
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return ended.Stderr
	}
	return nil
}

// counted writes a multiset: "5 elf sm_80, 1 ptx sm_90a".
func counted(names []string) string {
	n := map[string]int{}
	for _, name := range names {
		n[name]++
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(n)) {
		out = append(out, fmt.Sprintf("%d %s", n[name], name))
	}
	return strings.Join(out, ", ")
}
