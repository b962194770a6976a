package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/wheel"
)

// UpdateSums updates the list of sums after a file was added to the wheel at path. A directory without a
// list does not get one.
func UpdateSums(ctx context.Context, path string) error {
	dir, name := filepath.Split(path)
	if _, err := os.Lstat(filepath.Join(dir, wheel.SumsName)); err != nil {
		return nil //nolint:nilerr // dsbuild did not put the wheels there
	}
	return withLock(ctx, filepath.Clean(dir), false, func() error { return writeSums(dir, name) })
}

// writeSums lists dir's wheels with their sidecar files, and the wheelhouse, in the format of sha256sum -c.
// mine is the name of the wheel or directory that this run has written. Every other file keeps its line,
// even if it has changed since, so that the list shows the change.
func writeSums(dir, mine string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && ofWheel(e.Name()) {
			names = append(names, e.Name())
		}
	}
	var house []os.DirEntry
	if info, err := os.Lstat(filepath.Join(dir, wheel.WheelhouseDir)); err == nil && info.IsDir() {
		house, _ = os.ReadDir(filepath.Join(dir, wheel.WheelhouseDir)) // an unreadable wheelhouse is not listed
	}
	for _, e := range house {
		if ofWheel(e.Name()) || e.Name() == wheel.BundleName {
			names = append(names, wheel.WheelhouseDir+"/"+e.Name())
		}
	}
	file := filepath.Join(dir, wheel.SumsName)
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	before, others := map[string]string{}, ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n") + "\n"
		if _, name, ok := wheel.ParseSum(line); !ok || !slices.Contains(names, name) && isPlain(filepath.Join(dir, name)) {
			others += line
		} else {
			before[name] = line
		}
	}
	var b strings.Builder
	for _, name := range names {
		if !isPlain(filepath.Join(dir, name)) {
			continue // a directory, a pipe, or a link to any file of the user
		}
		line := before[name]
		if line == "" || name == mine || strings.HasPrefix(name, mine+".") || strings.HasPrefix(name, mine+"/") {
			sum, _, err := wheel.HashFile(filepath.Join(dir, name))
			if err != nil {
				return err
			}
			line = fmt.Sprintf("%s  %s\n", sum, name)
		}
		b.WriteString(line)
	}
	return atomicfile.Write(file, strings.NewReader(b.String()+others), 0o644)
}

// isPlain reports whether a regular file is at path, not a link to one.
func isPlain(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular()
}

// ofWheel reports whether name belongs to a wheel or its sidecar files.
func ofWheel(name string) bool {
	if _, signature := wheel.SignedName(name); signature {
		return true
	}
	for _, suffix := range []string{wheel.ManifestSuffix, wheel.ProvenanceSuffix, wheel.ByteCodeSuffix} {
		name = strings.TrimSuffix(name, suffix)
	}
	return strings.HasSuffix(name, ".whl")
}
