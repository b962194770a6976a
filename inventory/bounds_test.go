package inventory_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/inventory"
)

// lines repeats a line with its number in it.
func lines(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// A small file that stands for very much is refused, or costs little.
func TestSmallInventoriesStaySmall(t *testing.T) {
	needs.Time(t)
	const held = "too many "
	for name, c := range map[string]struct{ text, want string }{
		"variables of all":      {"defaults:\n  env:\n" + lines(5000, "    V%d: x\n") + "nodes:\n  - hosts: n[1-50000]\n    env: {A: b}\n", held},
		"variables, by entries": {"defaults:\n  env:\n" + lines(5000, "    V%d: x\n") + "nodes:\n" + lines(5000, "  - {hosts: n%d}\n"), held},
		"groups of all":         {"defaults:\n  groups: [" + lines(5000, "g%d,") + "g]\nnodes:\n" + lines(5000, "  - {hosts: n%d, groups: [a]}\n"), held},
		"groups of one":         {"nodes: [{hosts: n, groups: [" + lines(100_000, "g%d,") + "g]}]\n", ""},
		"environments":          {"defaults:\n  envs:\n" + lines(5000, "    - {name: e%d}\n") + "nodes:\n  - hosts: n[1-5000]\n", "more than"},
		"mistakes in one line":  {"defaults: {" + lines(60_000, "uzer%d: 1,") + "}\nnodes: [{hosts: a}]\n", "problems"},
		"mistakes":              {"nodes:\n" + strings.Repeat("  - {hosts: a}\n", 60_000), "and 59979 more problems"},
		"numbers":               {"nodes: [{hosts: 'n[" + strings.Repeat("1,", 300_000) + "1]'}]\n", "more than"},
		"ranges of one number":  {"nodes: [{hosts: 'n[1-100000]" + strings.Repeat("[1]", 80) + "'}]\n", ""},
		"signs":                 {"nodes: [" + strings.Repeat("{},", 1_500_000) + "{}]\n", "too many entries"},
		"expressions":           {strings.Repeat("gpu[1-90000]\n", 200), "more problems"},
		"hostfile":              {strings.Repeat("h slots=8\n", 300_000), "more problems"},
		"list: variables":       {`{"_meta": {"hostvars": {` + lines(5000, `"h%d": {`+strings.TrimSuffix(strings.ReplaceAll(lines(100, `"dsbuild_v%d":1,`), "%", "%%"), ",")+`},`) + `"h": {}}}}`, held},
		"list: environment":     {`{"_meta": {"hostvars": {` + lines(50_000, `"h%d": {"dsbuild_env": {"A": 1, "B": 2}},`) + `"h": {}}}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := inventory.Read(strings.NewReader(c.text), "-")
			runtime.ReadMemStats(&after)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%.300v, want %q", err, c.want)
			}
			if used := (after.TotalAlloc - before.TotalAlloc) >> 20; used > 1200 {
				t.Errorf("%d MiB were allocated for a file of %d KiB", used, len(c.text)>>10)
			}
		})
	}
}
