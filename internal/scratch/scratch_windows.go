package scratch

import (
	"io/fs"
	"path/filepath"

	"github.com/gofrs/flock"
)

// lockOf returns the directory's lock, which is on a file in it, because Windows cannot lock directories.
func lockOf(dir string) *flock.Flock { return flock.New(filepath.Join(dir, ".lock")) }

// ours reports whether info is a directory like those New makes. Windows has a temporary directory
// per user, so no other user's files are expected there.
func ours(info fs.FileInfo) bool { return info.IsDir() }
