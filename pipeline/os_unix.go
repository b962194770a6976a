//go:build unix

package pipeline

import (
	"io/fs"
	"os/exec"
	"strconv"
	"syscall"
)

// withHelpers makes the helpers of a program (ssh and git-remote-https of git) end with it when
// its context is cancelled.
func withHelpers(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

// freeAt returns the free space of the file system of path, and identifies that file system.
func freeAt(path string) (bytes int64, device string, err error) {
	var fsys syscall.Statfs_t
	if err := syscall.Statfs(path, &fsys); err != nil {
		return 0, "", &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	var at syscall.Stat_t
	if err := syscall.Stat(path, &at); err != nil {
		return 0, "", &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return int64(fsys.Bavail) * int64(fsys.Bsize), strconv.FormatUint(uint64(at.Dev), 10), nil //nolint:unconvert // types differ between systems
}
