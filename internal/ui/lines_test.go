package ui_test

import (
	"slices"
	"testing"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// Lines arrive one by one, however they are written.
func TestLineWriter(t *testing.T) {
	t.Parallel()
	var got []string
	w := &ui.LineWriter{Line: func(s string) { got = append(got, s) }}
	for _, part := range []string{"a", "b\n", "\n \nc\r\nd", "e\nrest"} {
		if n, err := w.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	if !slices.Equal(got, []string{"ab", "c", "de"}) {
		t.Errorf("%q", got)
	}
	w.End()
	if !slices.Equal(got, []string{"ab", "c", "de", "rest"}) {
		t.Errorf("at the end: %q", got)
	}
}
