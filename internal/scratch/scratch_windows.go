package scratch

import (
	"io/fs"
	"path/filepath"

	"github.com/gofrs/flock"
)

// lockOf is the lock of a directory: that of a file in it, because Windows locks no directories.
func lockOf(dir string) *flock.Flock { return flock.New(filepath.Join(dir, ".lock")) }

// ours reports whether it is a directory as New makes them. Each user has a temporary directory
// of his own, so others of this name are not expected there.
func ours(info fs.FileInfo) bool { return info.IsDir() }
