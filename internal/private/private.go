// Package private decides whether another account can change a file, by the owner, the mode, the group and the access
// control list (ACL) of each part of its path. Files that dsbuild runs or trusts must be private in this sense.
//
// The rule is a POSIX shell function, because nodes without Python need it too. Check applies it locally.
package private

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

//go:embed private.sh
var script string

// Script returns a shell script that defines the function unsafe. "unsafe DIR FILE..." prints "other users can change
// PATH (owner OWNER, mode MODE)" for the first part of the path of DIR, or the first FILE in it, that is not private,
// and nothing if all are.
func Script() string { return script }

// Check returns an error for the first part of the path of dir, or the first of the files in it, that another account
// can change. Parent directories in files come before their contents. Files that do not exist are private. On Windows
// every file is, because a user's directories have no other writers there.
func Check(ctx context.Context, dir string, files ...string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", script + `unsafe "$@"`, "sh", dir}, files...)...)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/bin:/bin") // a job may have an empty PATH
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	switch found := strings.TrimSpace(string(out)); {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("cannot check who can change %s: %w: %s", dir, err, strings.TrimSpace(stderr.String()))
	case found != "":
		return errors.New(found)
	}
	return nil
}
