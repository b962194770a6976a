//go:build linux

package inventory_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/debian"
	"github.com/dsbuild/dsbuild/inventory"
)

// scontrol returns what asks Slurm's own program, which needs no cluster to
// tell the names of an expression.
func scontrol(t *testing.T) func(args ...string) ([]string, error) {
	t.Helper()
	if err := debian.Ensure(t.Context(), debian.OnPath("scontrol"), "slurm-client"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("needs scontrol: ", err)
	}
	conf := filepath.Join(t.TempDir(), "slurm.conf")
	if err := os.WriteFile(conf, []byte("ClusterName=none\nSlurmctldHost=localhost\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(args ...string) ([]string, error) {
		cmd := exec.CommandContext(t.Context(), "scontrol", append([]string{"show"}, args...)...)
		cmd.Env = append(os.Environ(), "SLURM_CONF="+conf)
		out, err := cmd.Output()
		return strings.Fields(string(out)), err
	}
}

// Expressions stand for the names that Slurm says they stand for, in its order.
func TestExpressionsAsSlurm(t *testing.T) {
	show := scontrol(t)
	random := rand.New(rand.NewPCG(3, 4))
	for range 60 {
		expr := randomExpression(random)
		got, err := inventory.Expand(expr)
		if err != nil {
			t.Fatalf("%s: %v", expr, err)
		}
		want, err := show("hostnames", expr)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, Slurm has %v, %v", expr, got, want, err)
		}
	}
	// What makes no sense makes none to Slurm either, and what has text behind
	// its brackets Slurm does not know.
	for expr, ours := range map[string]bool{"n[3-1]": false, "n[1-2:2]": false, "n[a-b]": false, "n[1-2]x": true} {
		if _, err := inventory.Expand(expr); (err == nil) != ours {
			t.Errorf("%s: %v", expr, err)
		}
		if names, err := show("hostnames", expr); err == nil && len(names) > 0 {
			t.Errorf("%s: for Slurm %v", expr, names)
		}
	}
}

// randomExpression is a list as Slurm writes them: padded or not, with two
// ranges in a name at most.
func randomExpression(r *rand.Rand) string {
	var terms []string
	for range 1 + r.IntN(4) {
		term := []string{"gpu", "n", "rack1-", "a.b-", "x0y"}[r.IntN(5)]
		for range r.IntN(3) {
			var items []string
			for range 1 + r.IntN(3) {
				width, first := 1+r.IntN(3), 1+r.IntN(120)
				item := fmt.Sprintf("%0*d", width, first)
				if r.IntN(2) == 0 {
					item += fmt.Sprintf("-%0*d", len(item), first+r.IntN(12))
				}
				items = append(items, item)
			}
			term += "[" + strings.Join(items, ",") + "]"
		}
		terms = append(terms, strings.TrimSuffix(term, "-"))
	}
	return strings.Join(terms, ",")
}
