package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/internal/fault"
)

func TestEmptyHomeIsTheAccounts(t *testing.T) {
	account, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(xdg.Reload)
	for _, name := range []string{"HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"} {
		t.Setenv(name, "")
	}
	useAccountHome()
	if want := filepath.Join(account.HomeDir, ".cache"); os.Getenv("HOME") != account.HomeDir || xdg.CacheHome != want {
		t.Errorf("HOME %s, caches in %s", os.Getenv("HOME"), xdg.CacheHome)
	}
	t.Setenv("HOME", "/elsewhere")
	useAccountHome()
	if os.Getenv("HOME") != "/elsewhere" {
		t.Error("a HOME that is set was changed")
	}
}

func TestFolderHint(t *testing.T) {
	denied := func(path string, cause error) error {
		return fmt.Errorf("the log: %w", &fs.PathError{Op: "mkdir", Path: path, Err: cause})
	}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{denied(filepath.Join(xdg.StateHome, "dsbuild", "logs"), syscall.EACCES), true},
		{denied(xdg.CacheHome, syscall.EROFS), true},
		{denied(filepath.Join(xdg.CacheHome, "dsbuild"), syscall.ENOTDIR), true},
		{denied(filepath.Dir(xdg.CacheHome), syscall.EACCES), true},
		{denied("/srv/wheels", syscall.EACCES), false},
		{denied(xdg.CacheHome, syscall.ENOSPC), false},
		{errors.New("no file"), false},
		{nil, false},
	} {
		got := folderHint(c.err)
		if strings.Contains(fault.Hint(got), "XDG_CACHE_HOME") != c.want || !errors.Is(got, c.err) {
			t.Errorf("%v: hint %q", c.err, fault.Hint(got))
		}
	}
}

// What another account can change is neither run nor sent: a wheel in the store, the program uv, a log.
func TestOwnFoldersArePrivate(t *testing.T) {
	home := t.TempDir()
	t.Cleanup(xdg.Reload) // after the variables are as before
	t.Setenv("XDG_CACHE_HOME", filepath.Join(home, "cache"))
	t.Setenv("XDG_STATE_HOME", filepath.Join(home, "state"))
	xdg.Reload()
	wheels := filepath.Join(home, "cache", "dsbuild", "wheels")
	logs := filepath.Join(home, "state", "dsbuild", "logs")
	if err := checkOwnFolders(t.Context()); err != nil {
		t.Errorf("without directories: %v", err)
	}
	for _, dir := range []string{wheels, logs} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := checkOwnFolders(t.Context()); err != nil {
		t.Errorf("our own directories: %v", err)
	}
	for _, dir := range []string{wheels, filepath.Dir(wheels), filepath.Join(home, "cache"), logs, home} {
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		err := checkOwnFolders(t.Context())
		if err == nil || !strings.HasPrefix(err.Error(), "other users can change "+dir+" (owner ") || !strings.Contains(fault.Hint(err), "XDG_CACHE_HOME") {
			t.Errorf("%s of mode 777: %v, hint %q, want an error that names it", dir, err, fault.Hint(err))
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
