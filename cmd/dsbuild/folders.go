package main

import (
	"errors"
	"io/fs"
	"os"
	"os/user"
	"strings"
	"syscall"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// useAccountHome sets an empty HOME to the home directory of the account, as a shell does at a
// login. Without it dsbuild's folders would be in /.
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
	if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EROFS) {
		return err
	}
	for _, own := range []string{xdg.CacheHome, xdg.StateHome} {
		if path.Path != "/" && (strings.HasPrefix(own+"/", path.Path+"/") || strings.HasPrefix(path.Path, own+"/")) {
			return fault.WithHint(err, "set HOME to a writable directory, or set XDG_CACHE_HOME and XDG_STATE_HOME")
		}
	}
	return err
}
