package wheel

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// besideExtensions are the extensions of files that belong to the wheel beside them: statements,
// signatures and data. A backup or an editor's file has none of them.
func besideExtensions() []string {
	return []string{".json", ".jsonl", ".xz", ".sig", ".sigstore", ".asc", ".pem"}
}

// Beside returns the suffixes of the files that travel with the wheel at path, in order: a file
// NAME.whl.SUFFIX with the extension of a statement, a signature or data. A symbolic link or a
// folder among them is a *LinkError.
func Beside(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var suffixes []string
	for _, e := range entries {
		suffix, ours := strings.CutPrefix(e.Name(), filepath.Base(path))
		if !ours || !strings.HasPrefix(suffix, ".") || !slices.Contains(besideExtensions(), filepath.Ext(suffix)) {
			continue
		}
		if !e.Type().IsRegular() {
			return nil, &LinkError{Path: filepath.Join(filepath.Dir(path), e.Name()), Type: e.Type()}
		}
		suffixes = append(suffixes, suffix)
	}
	return suffixes, nil
}
