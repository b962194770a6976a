package fleet_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet"
)

// The oldest folders of runs go, but not that of a run that still writes, and nothing that is not a run's.
func TestHoldRun(t *testing.T) {
	dir := t.TempDir()
	name := func(i int) string { return fmt.Sprintf("20261130T0015%02d-abcdef-train", i) }
	hold := func(i int) (release func()) {
		t.Helper()
		release, err := fleet.HoldRun(filepath.Join(dir, name(i)), 3)
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	if err := os.Mkdir(filepath.Join(dir, "20261130"), 0o700); err != nil {
		t.Fatal(err)
	}
	mustBe := func(want ...int) {
		t.Helper()
		names, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		all := []string{filepath.Join(dir, "20261130")}
		for _, i := range want {
			all = append(all, filepath.Join(dir, name(i)))
		}
		if !slices.Equal(names, all) {
			t.Errorf("folders %s, want %s", strings.Join(names, " "), strings.Join(all, " "))
		}
	}
	long := hold(10)
	for i := 11; i < 16; i++ {
		hold(i)()
	}
	mustBe(10, 13, 14, 15)
	hold(5)() // its clock is behind
	mustBe(5, 10, 13, 14, 15)
	long()
	hold(16)()
	mustBe(14, 15, 16)
	if at := fleet.NewRunName(); !strings.HasPrefix(at, "2") || at == fleet.NewRunName() {
		t.Errorf("%s: want the time, and another name each time", at)
	}
}
