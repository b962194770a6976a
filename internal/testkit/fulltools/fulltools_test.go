package fulltools

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWheelList(t *testing.T) {
	all, err := parseList(wheelList)
	if err != nil || len(all) == 0 {
		t.Fatalf("%d wheels, %v", len(all), err)
	}
	sum := strings.Repeat("0a", 32)
	for file, want := range map[string]string{
		"torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl":                  "torch 2.15.0 3.11 --abi cp311 --platform manylinux_2_28_x86_64",
		"a.b_c-1!2.0+cu12-1build-cp36-cp36m-manylinux1_x86_64.whl":            "a.b_c 1!2.0+cu12 3.6 --abi cp36m --platform manylinux1_x86_64",
		"x-1-py2.py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl":     "x 1 3 --abi none --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64",
		"bitsandbytes-0.49.0-cp39.cp310-abi3.none-manylinux_2_24_aarch64.whl": "bitsandbytes 0.49.0 3.10 --abi abi3 --abi none --platform manylinux_2_24_aarch64",
	} {
		got, err := parseList("# comment\n\n" + sum + "  " + file + "\n")
		if err != nil || len(got) != 1 {
			t.Errorf("%s: %v", file, err)
			continue
		}
		w, question := got[0], strings.Join(got[0].downloadArgs("list", "dir"), " ")
		_, tags, _ := strings.Cut(question, "--python-version ")
		if have := w.name + " " + w.version + " " + tags; have != want || w.file != file || w.sha256 != sum {
			t.Errorf("%s: %s", file, have)
		}
	}
	for _, line := range []string{"x-1-py3-none-any.whl", sum + " x-1-py3-none-any.whl", sum + "  ../x-1-py3-none-any.whl", sum + "  x-1-py3-none.whl", sum[1:] + "  x-1-py3-none-any.whl"} {
		if got, err := parseList("\n" + line); err == nil || !strings.Contains(err.Error(), "wheels.txt:2:") {
			t.Errorf("%q: %v, %v", line, got, err)
		}
	}
}

// A damaged or missing file is downloaded again.
func TestIntact(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x.whl")
	if err := os.WriteFile(file, []byte("abc"), 0o644); err != nil {
		t.Fatal(err)
	}
	const sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	if err := checkSHA256(file, sum); err != nil {
		t.Error(err)
	}
	if err := checkSHA256(file, strings.Repeat("0", 64)); err == nil || !strings.Contains(err.Error(), sum) {
		t.Errorf("%v", err)
	}
	if checkSHA256(filepath.Join(dir, "y.whl"), sum) == nil {
		t.Error("a missing file is intact")
	}
}
