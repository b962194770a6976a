package pipeline

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/internal/filetime"
	"github.com/dsbuild/dsbuild/wheel"
)

// writeSums lists every wheel of dir, the files beside it, and the wheelhouse, in the form that
// sha256sum -c reads. It does not read all wheels of a large folder again: a file that has not
// changed since it was listed keeps its line.
func writeSums(dir string) error { return listSums(dir, filetime.At) }

// RelistSums lists the files of dir anew, after one was added. A folder that has no list gets none.
func RelistSums(ctx context.Context, dir string) error {
	if _, err := os.Lstat(filepath.Join(dir, wheel.SumsName)); err != nil {
		return nil //nolint:nilerr // it was not dsbuild that put the wheels there
	}
	return withLock(ctx, dir, false, func() error { return writeSums(dir) })
}

// listSums does the work of writeSums; changedAt returns the time of a file's last change.
func listSums(dir string, changedAt func(path string) (time.Time, error)) error {
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
		house, _ = os.ReadDir(filepath.Join(dir, wheel.WheelhouseDir)) // unreadable: nothing of it is listed
	}
	for _, e := range house {
		if ofWheel(e.Name()) || e.Name() == wheel.BundleName {
			names = append(names, wheel.WheelhouseDir+"/"+e.Name())
		}
	}
	file := filepath.Join(dir, wheel.SumsName)
	before := readSums(file)
	listed, err := changedAt(file)
	if err != nil {
		before = nil // there is none, or this system does not say
	}
	var b strings.Builder
	for _, name := range names {
		path := filepath.Join(dir, name)
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
			continue // a folder of that name, a pipe, a link to any file of the user's
		}
		sum := before[name]
		// The file may have changed while others were read.
		if at, err := changedAt(path); sum == "" || err != nil || at.Add(filetime.Slack).After(listed) {
			if sum, _, err = wheel.HashFile(path); err != nil {
				return err
			}
		}
		fmt.Fprintf(&b, "%s  %s\n", sum, name)
	}
	return atomicfile.Write(file, strings.NewReader(b.String()), 0o644)
}

// readSums returns the digests of a list by the names of the files.
func readSums(file string) map[string]string {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	sums := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if sum, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  "); ok && len(sum) == 64 {
			sums[name] = sum
		}
	}
	return sums
}

// ofWheel reports whether a name is that of a wheel or of a file beside one.
func ofWheel(name string) bool {
	if _, signature := wheel.SignedName(name); signature {
		return true
	}
	for _, suffix := range []string{wheel.ManifestSuffix, wheel.ProvenanceSuffix, wheel.ByteCodeSuffix} {
		name = strings.TrimSuffix(name, suffix)
	}
	return strings.HasSuffix(name, ".whl")
}
