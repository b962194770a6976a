package wheel

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Folders caches the names of the files in directories.
type Folders map[string][]fs.DirEntry

// Beside returns the suffixes of the files that travel with the wheel at path, in order: a file
// NAME.whl.SUFFIX with the extension of a statement, a signature or data. A symbolic link or a
// directory among them is a *LinkError.
func (f Folders) Beside(path string) ([]string, error) {
	dir, name := filepath.Dir(path), filepath.Base(path)
	entries, known := f[dir]
	if !known {
		var err error
		if entries, err = os.ReadDir(dir); err != nil {
			return nil, err
		}
		f[dir] = entries
	}
	first, _ := slices.BinarySearchFunc(entries, name, func(e fs.DirEntry, name string) int {
		return strings.Compare(e.Name(), name)
	})
	// The extensions of statements, signatures and data. A backup or an editor's file has none of them.
	extensions := []string{".json", ".jsonl", ".xz", ".sig", ".asc", ".pem"}
	var suffixes []string
	for _, e := range entries[first:] {
		suffix, ours := strings.CutPrefix(e.Name(), name)
		if !ours {
			break
		}
		if !strings.HasPrefix(suffix, ".") || !slices.Contains(extensions, filepath.Ext(suffix)) {
			continue
		}
		if !e.Type().IsRegular() {
			return nil, &LinkError{Path: filepath.Join(dir, e.Name()), Type: e.Type()}
		}
		suffixes = append(suffixes, suffix)
	}
	return suffixes, nil
}
