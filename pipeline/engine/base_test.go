package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// bases are those of an engine directory with a stand-in for enginectl, "" for
// one where no engine is installed, and what was noted.
func bases(t *testing.T, control string) (*Bases, *strings.Builder) {
	t.Helper()
	noted := &strings.Builder{}
	b := &Bases{
		Home: filepath.Join(t.TempDir(), "dsbuild", "engine"), Root: true,
		Note: func(format string, args ...any) { fmt.Fprintf(noted, format+"\n", args...) },
	}
	mkdir(t, b.Home, "base")
	if control != "" {
		script := "#!/bin/sh\n" + control + "\n"
		if err := os.WriteFile(filepath.Join(mkdir(t, b.Home, "bin"), "enginectl"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return b, noted
}

// makes is a stand-in that makes a base where the real one would.
const makes = `[ "$1" = base ] && : > "$XDG_STATE_HOME/dsbuild/engine/base/$2.tar"`

func TestBaseIsMadeOnce(t *testing.T) {
	b, noted := bases(t, makes)
	if tar := b.There("trixie"); tar != "" || noted.Len() > 0 {
		t.Errorf("to look for it made %q, said %q", tar, noted)
	}
	want := filepath.Join(b.Home, "base", "trixie.tar")
	for range 2 {
		if tar, err := b.Get(t.Context(), "trixie"); err != nil || tar != want {
			t.Errorf("%q, %v", tar, err)
		}
	}
	if tar := b.There("trixie"); tar != want {
		t.Errorf("%q", tar)
	}
	if strings.Count(noted.String(), "creating the base for trixie") != 1 {
		t.Errorf("noted %q", noted)
	}
}

// Where there can be no tar an image serves: that is no error.
func TestNoBase(t *testing.T) {
	b, _ := bases(t, "")
	if tar, err := b.Get(t.Context(), "trixie"); err != nil || tar != "" {
		t.Errorf("without an engine: %q, %v", tar, err)
	}
	b, noted := bases(t, makes)
	b.Root = false
	if tar, err := b.Get(t.Context(), "trixie"); err != nil || tar != "" || !strings.Contains(noted.String(), "only root") {
		t.Errorf("without root: %q, %v; noted %q", tar, err, noted)
	}
	b.Root = true
	if tar, err := b.Get(t.Context(), ""); err != nil || tar != "" {
		t.Errorf("without a suite: %q, %v", tar, err)
	}
	if tar := b.There("../base/x"); tar != "" {
		t.Errorf("a path counts as a suite: %q", tar)
	}
}

func TestBaseCannotBeMade(t *testing.T) {
	for script, want := range map[string][2]string{
		"echo '0.0s base' >&2; echo 'error: no disk' >&2; echo ' at all' >&2; echo 'hint: free some' >&2; exit 1": {"base for trixie: no disk\n at all", "free some"},
		"echo 'error: no disk' >&2; exit 1":          {"base for trixie: no disk", ""},
		"echo 'usage: enginectl ensure' >&2; exit 2": {"from an older dsbuild", "make engine"},
		"echo oops >&2; exit 3":                      {"exit status 3: oops", ""},
		"exit 0":                                     {"base for trixie", ""},
	} {
		b, _ := bases(t, script)
		tar, err := b.Get(t.Context(), "trixie")
		if err == nil || tar != "" || !strings.Contains(err.Error(), want[0]) || !strings.Contains(fault.Hint(err), want[1]) {
			t.Errorf("%s: %q, %v, hint %q", script, tar, err, fault.Hint(err))
		}
	}
}

// An end asked for reaches the program, which cleans up; nobody waits a minute.
func TestMakingABaseIsCancelled(t *testing.T) {
	b, _ := bases(t, `trap 'touch "$XDG_STATE_HOME/cleaned"; exit 130' TERM; touch "$XDG_STATE_HOME/started"; sleep 60 >/dev/null 2>&1 & wait $!`)
	there := func(name string) bool {
		_, err := os.Stat(filepath.Join(b.Home, "..", "..", name))
		return err == nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for !there("started") && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if _, err := b.Get(ctx, "trixie"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if !there("cleaned") {
		t.Error("it was killed, not told to end")
	}
}
