package remote

import (
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The table names every keyword that this machine's ssh prints, and says one thing of each.
func TestKeywords(t *testing.T) {
	program, err := exec.LookPath("ssh")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	out, err := exec.CommandContext(t.Context(), program, "-F", "none", "-G", "localhost").Output()
	if err != nil {
		t.Fatal(err)
	}
	table := keywords()
	n := 0
	for line := range strings.Lines(string(out)) {
		key, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if _, known := table[canonical(key)]; !known {
			t.Errorf("%q is not in the table: what does dsbuild's own SSH do about it?", key)
		}
		n++
	}
	if n < 50 {
		t.Errorf("ssh -G printed %d lines only", n)
	}
	named := append(strings.Fields(obeyed), strings.Fields(idle)...)
	for key, k := range table {
		if k.openSSH != "" {
			named = append(named, key)
		}
		if key != strings.ToLower(key) || k.openSSH != "" && !strings.EqualFold(k.openSSH, key) {
			t.Errorf("%s: %+v", key, k)
		}
	}
	if slices.Sort(named); !slices.Equal(named, slices.Sorted(maps.Keys(table))) {
		t.Errorf("a keyword is in two lists: %q", named)
	}
	for key := range switchedOff() {
		if !table[key].idle {
			t.Errorf("%s is switched off for OpenSSH, and the table says %+v", key, table[key])
		}
	}
}
