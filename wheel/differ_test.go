package wheel_test

import (
	"slices"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

func TestDiffer(t *testing.T) {
	t.Parallel()
	a := wheeltest.Packed(t, t.TempDir(), wheeltest.Options{Files: map[string]string{"deepspeed/a.py": "a", "deepspeed/b.py": "b", "deepspeed/c.py": "c"}})
	b := wheeltest.Packed(t, t.TempDir(), wheeltest.Options{Files: map[string]string{"deepspeed/a.py": "A", "deepspeed/b.py": "bb", "deepspeed/d.py": "d"}})
	got, err := wheel.Diff(t.Context(), a, b)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"deepspeed/a.py has other bytes", "deepspeed/b.py has 2 bytes, not 1", "deepspeed/c.py is missing", "deepspeed/d.py is new"} {
		if !slices.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
	if same, err := wheel.Diff(t.Context(), a, a); err != nil || len(same) > 0 {
		t.Errorf("%q, %v", same, err)
	}
}
