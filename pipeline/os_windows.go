package pipeline

import (
	"io/fs"
	"os/exec"

	"golang.org/x/sys/windows"
)

// withHelpers does nothing here. The helpers of a program live on when it is cancelled, and end
// when the pipes to it break.
func withHelpers(*exec.Cmd) {}

// freeAt returns the free space of the volume of path, and identifies that volume.
func freeAt(path string) (bytes int64, device string, err error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return 0, "", err
	}
	var free uint64
	if err := windows.GetDiskFreeSpaceEx(name, &free, nil, nil); err != nil {
		return 0, "", &fs.PathError{Op: "GetDiskFreeSpaceEx", Path: path, Err: err}
	}
	volume := make([]uint16, windows.MAX_PATH+1)
	if err := windows.GetVolumePathName(name, &volume[0], uint32(len(volume))); err != nil {
		return 0, "", &fs.PathError{Op: "GetVolumePathName", Path: path, Err: err}
	}
	return int64(free), windows.UTF16ToString(volume), nil
}
