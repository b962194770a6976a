package lineerr_test

import (
	"testing"

	"github.com/dsbuild/dsbuild/internal/lineerr"
)

// The nearest word is a likely typing or reading error, and nothing else is near.
func TestNearest(t *testing.T) {
	for _, c := range []struct {
		word       string
		candidates []string
		want       string
	}{
		{"deply", []string{"deploy", "nodes"}, "deploy"},
		{"delpoy", []string{"deploy", "nodes"}, "deploy"},
		{"gpus", []string{"cpu", "gpu", "glibc"}, "gpu"},
		{"A10O", []string{"A10", "A10G", "A100"}, "A100"},
		{"a100", []string{"A10", "A100"}, "A100"},
		{"l40", []string{"L4", "L40"}, "L40"},
		{"H1OO", []string{"H10", "H100"}, "H100"},
		{"gpu1", []string{"cpu1", "gpu01", "gpu02"}, "gpu01"},
		{"node0010", []string{"node0001", "node010", "node011"}, "node010"},
		{"no_cache", []string{"no-cache"}, "no-cache"},
		{"v5", []string{"v2", "v3", "v4"}, ""},
		{"x", []string{"y"}, ""},
		{"", []string{"y"}, ""},
		{"kubernetes", []string{"k8s", "jax"}, ""},
		{"frobnicate", []string{"index", "inspect"}, ""},
	} {
		if got := lineerr.Nearest(c.word, c.candidates); got != c.want {
			t.Errorf("%s: %q, want %q", c.word, got, c.want)
		}
	}
}
