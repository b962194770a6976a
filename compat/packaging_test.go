package compat

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/node"
)

// pipTags asks the library inside pip by which pip goes (packaging) for the tags
// that a Python takes on an x86_64 Linux with some glibc.
const pipTags = `
import json, sys
from pip._vendor.packaging import _manylinux, tags
threads = hasattr(tags, "_is_threaded_cpython")
out = []
for minor, free, glibc in json.load(sys.stdin):
    if free and not threads:
        continue
    _manylinux._get_glibc_version = lambda: tuple(map(int, glibc.split(".")))
    platforms = [p for p in tags.platform_tags() if not p.startswith("musllinux")]
    abi = "cp3%d%s" % (minor, "t" if free else "")
    found = list(tags.cpython_tags((3, minor), [abi], platforms)) + list(tags.compatible_tags((3, minor), "cp3%d" % minor, platforms))
    out.append({"minor": minor, "abi": abi, "glibc": glibc, "tags": sorted(set(map(str, found)))})
json.dump(out, sys.stdout)
`

// TestInstallsAsPip holds Installs against pip, for every tag that looks like one.
func TestInstallsAsPip(t *testing.T) {
	var ask [][]any
	for _, minor := range []int{8, 9, 10, 11, 12, 13, 14} {
		for _, glibc := range []string{"2.4", "2.5", "2.16", "2.17", "2.28", "2.34", "2.35", "2.36", "2.41"} {
			ask = append(ask, []any{minor, false, glibc}, []any{minor, true, glibc})
		}
	}
	var takes []struct {
		Minor int
		ABI   string
		Glibc string
		Tags  []string
	}
	askPython(t, pipTags, ask, &takes)
	compared, yes := 0, 0
	tags := likelyTags()
	for _, p := range takes {
		f := node.Facts{Python: fmt.Sprintf("3.%d.1", p.Minor), Tag: p.ABI, Platform: "linux_x86_64", Glibc: p.Glibc}
		for _, tag := range tags {
			compared++
			want := slices.Contains(p.Tags, tag)
			if want {
				yes++
			}
			if got := Installs(tag, f); got != want {
				t.Fatalf("%s on %s, glibc %s: %v, pip says %v", tag, p.ABI, p.Glibc, got, want)
			}
		}
	}
	if yes < 1000 || compared-yes < 1000 {
		t.Errorf("of %d tags %d are taken", compared, yes)
	}
	t.Logf("result: %d tags as pip takes them, %d of them yes", compared, yes)
}

func likelyTags() []string {
	var out []string
	for _, python := range []string{"cp31", "cp38", "cp39", "cp310", "cp311", "cp312", "cp313", "cp314", "py2", "py3", "py38", "py311", "py314", "cp27", "cp3", "pp311"} {
		for _, abi := range []string{python, python + "t", "abi3", "none", "cp311", "cp313t"} {
			for _, platform := range []string{
				"any", "linux_x86_64", "linux_aarch64", "manylinux1_x86_64", "manylinux2010_x86_64", "manylinux2014_x86_64", "manylinux2014_aarch64", "manylinux_2_5_x86_64",
				"manylinux_2_17_x86_64", "manylinux_2_28_x86_64", "manylinux_2_34_x86_64", "manylinux_2_35_x86_64", "manylinux_2_36_x86_64", "manylinux_2_36_aarch64", "manylinux_2_x86_64", "win_amd64", "macosx_11_0_arm64",
			} {
				out = append(out, python+"-"+abi+"-"+platform)
			}
		}
	}
	return out
}

// askPython runs a Python program with JSON in and out. Without a Python that has pip
// the test is skipped, but fails where the variable CI is true.
func askPython(t *testing.T, program string, in, out any) {
	t.Helper()
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "python3", "-c", program)
	cmd.Stdin, cmd.Stderr = strings.NewReader(string(text)), os.Stderr
	got, err := cmd.Output()
	if err != nil && os.Getenv("CI") != "true" {
		t.Skipf("no python3 with pip: %v", err)
	}
	if err == nil {
		err = json.Unmarshal(got, out)
	}
	if err != nil {
		t.Fatal(err)
	}
}
