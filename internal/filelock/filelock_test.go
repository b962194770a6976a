package filelock_test

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
	"github.com/dsbuild/dsbuild/internal/filelock"
)

func TestTake(t *testing.T) {
	dir, sealed, others := t.TempDir(), t.TempDir(), t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(others, ".dsbuild.lock"), nil, 0o400), os.Chmod(others, 0o555), os.Chmod(sealed, 0o555)); err != nil {
		t.Fatal(err)
	}
	for path, locked := range map[string]string{
		dir: "/.dsbuild.lock", filepath.Join(dir, "file.lock"): "", sealed: "", others: "/.dsbuild.lock",
	} {
		if os.Getuid() == 0 && path == sealed {
			continue // root may write there
		}
		alone, shared := filelock.Options{}, filelock.Options{Shared: true}
		for name, c := range map[string]struct {
			first, second filelock.Options
			both          bool
		}{
			"two alone":        {alone, alone, false},
			"alone and shared": {alone, shared, false},
			"shared and alone": {shared, alone, false},
			"two shared":       {shared, shared, true},
		} {
			release, err := filelock.Take(t.Context(), path, c.first)
			if err != nil {
				t.Fatalf("%s, %s: %v", path, name, err)
			}
			second, err := filelock.Take(t.Context(), path, c.second)
			if (err == nil) != c.both {
				t.Errorf("%s, %s: %v, want both: %t", path, name, err, c.both)
			}
			want := fmt.Sprintf("%s is locked by process %d (", path+locked, os.Getpid())
			if held := (*filelock.HeldError)(nil); err != nil && (!errors.As(err, &held) || !strings.HasPrefix(err.Error(), want) || fault.Hint(err) == "") {
				t.Errorf("%s, %s: %v, want %s", path, name, err, want)
			}
			if err == nil {
				second()
			}
			release()
			if again, err := filelock.Take(t.Context(), path, alone); err != nil {
				t.Errorf("%s, %s: after the release: %v", path, name, err)
			} else {
				again()
			}
		}
	}
}

// A wait is announced once, with the process that is waited for. It ends with the lock, with its time, or with the context.
func TestWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	release, err := filelock.Take(t.Context(), path, filelock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	opt := filelock.Options{Wait: 100 * time.Millisecond, Waiting: func(holder string) { told = append(told, holder) }}
	_, err = filelock.Take(t.Context(), path, opt)
	if err == nil || !strings.HasSuffix(err.Error(), ", for more than 100ms") || len(told) != 1 || !strings.Contains(told[0], fmt.Sprint(os.Getpid())) {
		t.Errorf("%v, told %q, want an error after 100 ms and one line with the process", err, told)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	opt.Wait, opt.Waiting = time.Hour, func(string) { cancel(stop) }
	if _, err = filelock.Take(ctx, path, opt); !errors.Is(err, stop) {
		t.Errorf("%v, want the cause of the end of the context", err)
	}
	opt.Waiting = func(string) { release() }
	again, err := filelock.Take(t.Context(), path, opt)
	if err != nil {
		t.Fatalf("after the release: %v", err)
	}
	again()
	if _, err := filelock.Take(t.Context(), filepath.Join(path, "none"), opt); err == nil {
		t.Error("a file below a file has a lock, want an error")
	}
}
