package ui_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// randomNames are names of nodes as clusters have them: with gaps, several widths and several parts.
func randomNames(random *rand.Rand) []string {
	var names []string
	for range 1 + random.IntN(40) {
		switch random.IntN(5) {
		case 0:
			names = append(names, fmt.Sprintf("gpu%02d", random.IntN(30)))
		case 1:
			names = append(names, fmt.Sprintf("gpu%d", random.IntN(130)))
		case 2:
			names = append(names, fmt.Sprintf("r%dn%02d-ib%d", random.IntN(3), random.IntN(4), random.IntN(2)))
		case 3:
			names = append(names, fmt.Sprintf("node-%c", 'a'+random.IntN(26)))
		default:
			names = append(names, fmt.Sprintf("n%03d.rack%d", random.IntN(12), random.IntN(2)))
		}
	}
	return names
}

// Folded names, expanded as an inventory does, are the same set: a user copies them into --limit.
func TestFoldedNamesExpandToThemselves(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		names := randomNames(random)
		folded := ui.FoldNames(names)
		again, err := inventory.Expand(folded)
		if err != nil {
			t.Fatalf("%s: %v", folded, err)
		}
		slices.Sort(names)
		names = slices.Compact(names)
		slices.Sort(again)
		if !slices.Equal(names, again) {
			t.Fatalf("%q\nfolded %s\nis %q", names, folded, again)
		}
	}
}

// Names that are cut to a width say so, never name a node that was not among them, and never break a
// range open.
func TestFoldWithinAWidth(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		names, width := randomNames(random), random.IntN(60)
		folded, whole := ui.FoldWithin(names, width)
		if whole != (folded == ui.FoldNames(names)) || whole && len(folded) > width || len(folded) > width+len(",…]") {
			t.Fatalf("%d: %s, whole %v", width, folded, whole)
		}
		if whole || folded == "" {
			continue
		}
		if !strings.Contains(folded, ",…") || strings.Count(folded, "[") != strings.Count(folded, "]") {
			t.Fatalf("%d: %s", width, folded)
		}
		some, err := inventory.Expand(strings.NewReplacer(",…]", "]", ",…", "").Replace(folded))
		if err != nil {
			t.Fatalf("%s: %v", folded, err)
		}
		for _, name := range some {
			if !slices.Contains(names, name) {
				t.Fatalf("%s names %s, which is none of %q", folded, name, names)
			}
		}
	}
}

func TestFoldedText(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 200 {
		many = append(many, fmt.Sprintf("node-%c%d", 'a'+i%26, i*i))
	}
	if got := ui.FoldShort(many); len(got) > 230 || !strings.HasSuffix(got, "(200 nodes)") || !strings.Contains(got, "…") {
		t.Error(got)
	}
	if got := ui.FoldShort([]string{"a1", "a2"}); got != "a[1-2]" {
		t.Error(got)
	}
	if got := ui.FoldShort([]string{strings.Repeat("x", 300), "y"}); got != "2 nodes" {
		t.Error(got)
	}
	for want, f := range map[string]ui.Folded{
		"gpu1: text":                            {Names: "gpu1", Count: 1, Text: "text"},
		"gpu[1-2] (2 nodes): text":              {Names: "gpu[1-2]", Count: 2, Text: "text"},
		"gpu[1-2] (2 nodes), e.g. gpu1: text":   {Names: "gpu[1-2]", Count: 2, Text: "text", Example: "gpu1"},
		"gpu[1-10] (10 nodes), e.g. gpu7: text": {Names: "gpu[1-10]", Count: 10, Text: "text", Example: "gpu7"},
	} {
		if f.String() != want {
			t.Errorf("%s, want %s", f, want)
		}
	}
}

// A text that is cut keeps whole characters, and says that it was cut.
func TestShorten(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("ü✓x", 50)
	for most := range len(text) + 2 {
		for name, cut := range map[string]func(string, int) string{"the end": ui.Shorten, "the middle": ui.ShortenMiddle} {
			got := cut(text, most)
			switch {
			case !utf8.ValidString(got):
				t.Fatalf("%s, %d: %q", name, most, got)
			case most >= len(text) && got != text:
				t.Fatalf("%s, %d: a text that fits is cut", name, most)
			case most < len(text) && (got == text || len(got) > most+40):
				t.Fatalf("%s, %d: %d bytes", name, most, len(got))
			}
		}
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{"0 nodes": ui.Count(0, "node"), "1 node": ui.Count(1, "node"), "2 processes": ui.Count(2, "process"), "1 process": ui.Count(1, "process")} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
