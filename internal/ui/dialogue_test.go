package ui_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/ui"
)

func TestDialogueWithPreparedAnswers(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	d := ui.NewDialogue(strings.NewReader("\n  two \nthree"), &out)
	taken := func(string) error { return nil }
	for _, want := range []string{"one", "two", "three"} {
		if got, err := d.Ask(t.Context(), "q\x1b[2J", "one", taken); err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	if _, err := d.Ask(t.Context(), "last", "", taken); !errors.Is(err, ui.ErrNoAnswer) || err.Error() != "last: no answer" {
		t.Error(err)
	}
	if out.String() != "q [one]: \nq [one]: two\nq [one]: three\nlast: \n" {
		t.Errorf("%q", &out)
	}
}

func TestDialogueRefusesAWrongAnswer(t *testing.T) {
	t.Parallel()
	d := ui.NewDialogue(strings.NewReader("x\ny\n"), io.Discard)
	if _, err := d.Ask(t.Context(), "q", "", func(string) error { return errors.New("y is wanted") }); err == nil || err.Error() != `q: "x": y is wanted` {
		t.Error(err)
	}
	// A caller that waits for an answer can leave.
	in, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ui.NewDialogue(in, io.Discard).Ask(ctx, "q", "", nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
