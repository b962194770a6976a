package image

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/wheel"
)

// target is where wheels are installed. All paths are absolute.
type target struct {
	site   string // site-packages
	prefix string // of the environment
	python string // the interpreter in the first line of scripts
}

// newTarget derives an environment from its site-packages and the Python X.Y, as sysconfig lays
// it out. Debian's own Python installs into /usr/local.
func newTarget(site, python string) (target, error) {
	t := target{site: path.Clean(site)}
	m := pythonFolder.FindStringSubmatch(t.site)
	switch {
	case m == nil:
		return t, usagef("give the folder that 'python -c \"import sysconfig; print(sysconfig.get_path('purelib'))\"' prints in the base",
			"site-packages %s: it does not end with lib/pythonX.Y/site-packages", site)
	case m[1] != python:
		return t, usagef("", "site-packages %s belongs to Python %s, but the base's Python is %s", site, m[1], python)
	}
	t.prefix = path.Dir(path.Dir(path.Dir(t.site)))
	t.python = path.Join(t.prefix, "bin", "python"+python)
	if m[2] == "dist" {
		if t.prefix != "/usr/local" {
			return t, usagef("give --site-packages /usr/local/lib/python"+python+"/dist-packages", "site-packages %s belongs to the distribution's packages", site)
		}
		t.python = "/usr/bin/python" + python
	}
	return t, nil
}

// file is one file of the layer.
type file struct {
	path string // in the image, without a leading slash
	mode int64
	size int64
	open func() (io.ReadCloser, error) // nil: a folder
}

// text returns a file with these contents.
func textFile(at string, mode int64, data []byte) file {
	return file{strings.TrimPrefix(at, "/"), mode, int64(len(data)), func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }}
}

// installation is the files of one installed wheel.
type installation struct {
	archive *wheel.Archive
	target  target
	name    string // of the distribution
	files   []file
	record  []wheel.RecordEntry
}

// maxScript bounds a script, whose first line may change: bytes.
const maxScript = 16 << 20

// installWheel returns the files that pip install --no-deps would write for a wheel, without byte
// code: Python compiles that at the first import.
func installWheel(a *wheel.Archive, t target) (*installation, error) {
	i := &installation{archive: a, target: t}
	meta, err := a.Metadata()
	if err != nil {
		return nil, err
	}
	i.name = meta.Name
	in, err := a.Open(path.Join(a.DistInfo(), "RECORD")) // the wheel was verified against it
	if err != nil {
		return nil, err
	}
	entries, err := wheel.ParseRecord(in)
	if err = errors.Join(err, in.Close()); err != nil {
		return nil, err
	}
	listed := make(map[string]wheel.RecordEntry, len(entries))
	for _, e := range entries {
		listed[e.Path] = e
	}
	for _, m := range a.Members() {
		if err := i.addMember(m, listed); err != nil {
			return nil, err
		}
	}
	commands, err := a.EntryPoints()
	if err != nil {
		return nil, err
	}
	for _, c := range commands {
		top, _, _ := strings.Cut(c.Object, ".")
		if top == "" {
			return nil, fmt.Errorf("the command %s names no function", c.Name)
		}
		script := fmt.Appendf(nil, entryScript, t.python, c.Module, top, c.Object)
		i.addText(path.Join(t.prefix, "bin", c.Name), 0o755, script)
	}
	info := path.Join(t.site, a.DistInfo())
	i.addText(path.Join(info, "INSTALLER"), 0o644, []byte("dsbuild\n"))
	i.addText(path.Join(info, "REQUESTED"), 0o644, nil)
	at := path.Join(info, "RECORD")
	i.record = append(i.record, wheel.RecordEntry{Path: i.recordPath(at), Size: -1})
	slices.SortFunc(i.record, func(x, y wheel.RecordEntry) int { return strings.Compare(x.Path, y.Path) })
	i.files = append(i.files, textFile(at, 0o644, wheel.FormatRecord(i.record)))
	slices.SortFunc(i.files, func(x, y file) int { return strings.Compare(x.path, y.path) })
	return i, nil
}

// addMember adds a file of the wheel at its place.
func (i *installation) addMember(m wheel.Member, listed map[string]wheel.RecordEntry) error {
	scheme, below := wheel.Place(m.Name)
	mode := int64(0o644)
	if m.Mode&0o111 != 0 {
		mode = 0o755
	}
	var at string
	switch scheme {
	case "":
		if path.Dir(m.Name) == i.archive.DistInfo() && slices.Contains([]string{"RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json"}, path.Base(m.Name)) {
			return nil // installers write these, or must not copy them
		}
		at = path.Join(i.target.site, below)
	case "scripts":
		// Add a script; one that begins with #!python gets the interpreter's path.
		data, err := i.archive.ReadFile(m.Name, maxScript)
		if err != nil {
			return err
		}
		if first, rest, ok := bytes.Cut(data, []byte("\n")); ok && bytes.HasPrefix(first, []byte("#!python")) {
			_, args, _ := bytes.Cut(first, []byte(" "))
			line := "#!" + i.target.python
			if len(args) > 0 {
				line += " " + string(args)
			}
			data = slices.Concat([]byte(line+"\n"), rest)
		}
		i.addText(path.Join(i.target.prefix, "bin", below), 0o755, data)
		return nil
	case "headers":
		at = path.Join(i.target.prefix, "include", "site", path.Base(path.Dir(i.target.site)), i.name, below)
	default: // data
		at = path.Join(i.target.prefix, below)
	}
	e := listed[m.Name]
	e.Path = i.recordPath(at)
	i.record = append(i.record, e)
	i.files = append(i.files, file{strings.TrimPrefix(at, "/"), mode, m.Size, func() (io.ReadCloser, error) { return i.archive.Open(m.Name) }})
	return nil
}

// entryScript is a command made of a function.
const entryScript = `#!%s
import sys
from %s import %s
if __name__ == "__main__":
    sys.exit(%s())
`

// addText adds a file that the installer writes, and its line in RECORD.
func (i *installation) addText(at string, mode int64, data []byte) {
	sum := sha256.Sum256(data)
	i.record = append(i.record, wheel.RecordEntry{Path: i.recordPath(at), Algorithm: "sha256", Digest: wheel.RecordDigest(sum[:]), Size: int64(len(data))})
	i.files = append(i.files, textFile(at, mode, data))
}

// recordPath writes a path as RECORD has it: relative to site-packages.
func (i *installation) recordPath(at string) string {
	if below, ok := strings.CutPrefix(at, i.target.site+"/"); ok {
		return below
	}
	up, common := "", i.target.site
	for !strings.HasPrefix(at, common+"/") {
		common = strings.TrimSuffix(path.Dir(common), "/")
		up += "../"
	}
	return up + strings.TrimPrefix(at, common+"/")
}
