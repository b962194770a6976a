package environment

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// pipOrder prints the tags that pip prefers, best first, for a Python and a glibc on x86_64.
const pipOrder = `
import json, sys
from pip._vendor.packaging import _manylinux, tags
out = {}
for minor, glibc in json.load(sys.stdin):
    _manylinux._get_glibc_version = lambda: tuple(map(int, glibc.split(".")))
    platforms = [p for p in tags.platform_tags() if not p.startswith("musllinux")]
    cp = "cp3%d" % minor
    found = list(tags.cpython_tags((3, minor), [cp], platforms)) + list(tags.compatible_tags((3, minor), cp, platforms))
    out["3.%d %s" % (minor, glibc)] = list(map(str, found))
json.dump(out, sys.stdout)
`

// pipPrefers returns the best of some wheels by pip's order: by the first tag in the list, then by the
// build number.
func pipPrefers(names, order []string) (best string) {
	place, build := len(order), ""
	for _, name := range names {
		parts := strings.Split(strings.TrimSuffix(name, ".whl"), "-")
		number := ""
		if len(parts) == 6 {
			number = fmt.Sprintf("%08s", parts[2])
		}
		for platform := range strings.SplitSeq(parts[len(parts)-1], ".") {
			at := slices.Index(order, strings.Join(parts[len(parts)-3:len(parts)-1], "-")+"-"+platform)
			if at >= 0 && (at < place || at == place && number > build) {
				best, place, build = name, at, number
			}
		}
	}
	return best
}

// Of random wheels of one release choose takes the one that pip takes, or none if pip takes none.
func TestChooseTakesTheWheelOfPip(t *testing.T) {
	t.Parallel()
	var ask [][]any
	for _, minor := range []int{9, 11, 14} {
		for _, glibc := range []string{"2.17", "2.28", "2.39"} {
			ask = append(ask, []any{minor, glibc})
		}
	}
	request, err := json.Marshal(ask)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "python3", "-c", pipOrder)
	cmd.Stdin, cmd.Stderr = strings.NewReader(string(request)), os.Stderr
	said, err := cmd.Output()
	if err != nil && os.Getenv("CI") != "true" {
		t.Skipf("no python3 with pip: %v", err)
	}
	var orders map[string][]string
	if err := json.Unmarshal(said, &orders); err != nil {
		t.Fatal(err)
	}
	const seed = 7
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	taken := 0
	for range 8_000 {
		var all []File
		var names []string
		for range 2 + r.IntN(3) {
			python := pick("cp39", "cp310", "cp311", "cp314", "cp38", "py3", "py2", "py39", "py310", "py311", "py312")
			abi := pick("none", "abi3", python)
			platform := pick("any", "linux_x86_64", "manylinux1_x86_64", "manylinux2010_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_17_x86_64.manylinux2014_x86_64",
				"manylinux_2_28_x86_64", "manylinux_2_34_x86_64", "manylinux_2_28_aarch64")
			name := "a-1-" + pick("", "", "", "0-", "2-", "10-") + python + "-" + abi + "-" + platform + ".whl"
			names, all = append(names, name), append(all, File{Name: "a", File: name})
		}
		a := ask[r.IntN(len(ask))]
		k, python := Platform{"x86_64", a[1].(string)}, fmt.Sprintf("3.%d", a[0])
		order := orders[python+" "+k.Glibc]
		want := pipPrefers(names, order)
		got, err := choose(all, python, k)
		// Wheels that pip ranks alike are alike: the first of them is taken.
		if (err != nil) != (want == "") || err == nil && pipPrefers([]string{got.File, want}, order) != got.File {
			t.Fatalf("Python %s, glibc %s, of %q: %q, %v; pip takes %q", python, k.Glibc, names, got.File, err, want)
		}
		if err == nil {
			taken++
		}
	}
	if taken < 2000 {
		t.Errorf("only %d choices", taken)
	}
}
