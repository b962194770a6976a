package filelock

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// inode returns the device and inode of a file, as /proc/locks writes them.
func inode(path string) string {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return ""
	}
	return fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
}
