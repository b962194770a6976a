package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/private"
)

// useAccountHome sets an empty HOME to the home directory of the account, as a shell does at a
// login. Without it dsbuild's directories would be in /.
func useAccountHome() {
	if os.Getenv("HOME") != "" {
		return
	}
	account, err := user.Current()
	if err != nil || account.HomeDir == "" {
		return // the account has no entry: folderHint names the variables to set
	}
	if os.Setenv("HOME", account.HomeDir) == nil {
		xdg.Reload()
	}
}

// folderHint adds to err how to move dsbuild's own folders, if err reports that one of them
// cannot be written.
func folderHint(err error) error {
	var path *fs.PathError
	if !errors.As(err, &path) || fault.Hint(err) != "" {
		return err
	}
	if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EROFS) && !errors.Is(err, syscall.ENOTDIR) && // HOME=/dev/null
		!errors.Is(err, fs.ErrNotExist) { // HOME=/proc
		return err
	}
	for _, own := range []string{xdg.CacheHome, xdg.StateHome} {
		if path.Path != "/" && (strings.HasPrefix(own+"/", path.Path+"/") || strings.HasPrefix(path.Path, own+"/")) {
			return fault.WithHint(err, "set HOME to a writable directory, or set XDG_CACHE_HOME and XDG_STATE_HOME")
		}
	}
	return err
}

// checkOwnFolders returns an error if another account can change the directories in which dsbuild keeps wheels, packages,
// compilers and logs: it runs what is there, and sends it to nodes.
func checkOwnFolders(ctx context.Context) error {
	for _, dir := range []string{xdg.CacheHome, xdg.StateHome} {
		top := filepath.Join(dir, "dsbuild")
		entries, err := os.ReadDir(top)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		var inner []string
		for _, e := range entries {
			if e.IsDir() {
				inner = append(inner, e.Name())
			}
		}
		if err := private.Check(ctx, top, inner...); err != nil {
			return fault.WithHint(err, "remove the write permission of others (chmod go-w, setfacl -b), "+
				"or set XDG_CACHE_HOME and XDG_STATE_HOME to directories of your own")
		}
	}
	return nil
}
