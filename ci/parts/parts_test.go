package parts

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// checkout makes a checkout with a document, enters it, and returns a program of two parts. The
// first part fails.
func checkout(t *testing.T) (p Program, done *[]string) {
	t.Helper()
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("results.md", []byte(begin+end), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "x"}} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	done = new([]string)
	need := Need{"something", func(context.Context, ui.Step) (string, error) { *done = append(*done, "need"); return "", nil }}
	return Program{
		Name: "try", Document: Document{File: "results.md", Begin: begin, End: end}, Dir: t.TempDir(),
		Begin: func(_ ui.Reporter, log *os.File) error { _, err := log.WriteString("begun\n"); return err },
		Parts: []Part{
			{"one", "fails", []Need{need}, func(context.Context) (string, error) { return "came so far\n", errors.New("it broke") }},
			{"two", "works", []Need{need}, func(context.Context) (string, error) { *done = append(*done, "two"); return "| it works |\n", nil }},
		},
	}, done
}

func TestRun(t *testing.T) {
	p, done := checkout(t)
	var out bytes.Buffer
	if code := p.Run(t.Context(), nil, &out); code != 1 {
		t.Errorf("exit %d", code)
	}
	for _, want := range []string{"came so far", "part one: it broke", "part two: done in "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &out)
		}
	}
	if want := []string{"need", "two"}; !slices.Equal(*done, want) {
		t.Errorf("done: %q", *done)
	}
	text, err := os.ReadFile("results.md")
	if err != nil || strings.Contains(string(text), "### one") || !strings.Contains(string(text), "### two\n\n2") || !strings.Contains(string(text), " were preparation.\n\n| it works |\n") {
		t.Errorf("%v\n%s", err, text)
	}
	if log, err := os.ReadFile(filepath.Join(p.Dir, "logs", "two.log")); err != nil || string(log) != "begun\n" {
		t.Errorf("%q, %v", log, err)
	}
}

func TestChoose(t *testing.T) {
	p, done := checkout(t)
	var out bytes.Buffer
	if code := p.Run(t.Context(), []string{"two", "two"}, &out); code != 0 || !slices.Equal(*done, []string{"need", "two"}) {
		t.Errorf("exit %d, done %q\n%s", code, *done, &out)
	}
	out.Reset()
	if code := p.Run(t.Context(), []string{"two", "three"}, &out); code != 2 || out.String() != "try: no part \"three\"; parts: one, two\n" {
		t.Errorf("exit %d, says %q", code, &out)
	}
}

// Outside a checkout nothing runs, and so no hour is lost.
func TestRunNeedsTheDocument(t *testing.T) {
	p, done := checkout(t)
	t.Chdir(t.TempDir())
	var out bytes.Buffer
	if code := p.Run(t.Context(), nil, &out); code != 1 || len(*done) > 0 || !strings.Contains(out.String(), "results.md") {
		t.Errorf("exit %d, done %q\n%s", code, *done, &out)
	}
}

// A second run would disturb the first, so it is refused. A part that takes too long ends.
func TestLockAndLimit(t *testing.T) {
	p, _ := checkout(t)
	p.Limit = time.Second
	var second bytes.Buffer
	p.Parts[1].Do = func(ctx context.Context) (string, error) {
		if code := p.Run(ctx, []string{"two"}, &second); code != 1 {
			t.Errorf("a second run: exit %d", code)
		}
		<-ctx.Done()
		return "", ctx.Err()
	}
	var out bytes.Buffer
	if code := p.Run(t.Context(), []string{"two"}, &out); code != 1 || !strings.Contains(out.String(), "part two: not done within 1s") {
		t.Errorf("exit %d\n%s", code, &out)
	}
	if !strings.Contains(second.String(), "another try runs") {
		t.Errorf("a second run says %q", &second)
	}
}
