package scratch

import (
	"io/fs"
	"path/filepath"

	"github.com/gofrs/flock"
)

// lockOf is the lock of a directory: that of a file within, for Windows locks
// no directories.
func lockOf(dir string) *flock.Flock { return flock.New(filepath.Join(dir, ".lock")) }

// ours reports whether it is a directory as New makes them; others of their name
// are not to be expected in a temporary directory, which each user has alone.
func ours(info fs.FileInfo) bool { return info.IsDir() }
