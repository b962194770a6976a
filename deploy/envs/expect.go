package envs

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/deploy/wheels"
	"github.com/dsbuild/dsbuild/environment"
	"github.com/dsbuild/dsbuild/wheel"
)

// Files are the files of a lock on this machine.
type Files struct {
	Paths    map[string]string        // by sha256; each file was compared with the lock
	Wheels   map[string]*wheels.Wheel // the wheels of DeepSpeed among them
	Unpacked map[string]int64         // bytes that each needs once it is installed
	Digests  map[string]string        // of the files that each installs into site-packages
}

// OpenFiles reads files that were collected.
func OpenFiles(ctx context.Context, l *environment.Lock, paths map[string]string, known wheels.Cache) (*Files, error) {
	f := &Files{Paths: paths, Wheels: map[string]*wheels.Wheel{}, Unpacked: map[string]int64{}, Digests: map[string]string{}}
	for _, set := range l.Sets {
		if python := set.Python; python != nil && paths[python.SHA256] != "" {
			if err := f.openPython(*python, paths[python.SHA256]); err != nil {
				return nil, err
			}
		}
		for _, file := range append([]environment.File{set.Installer}, set.Files...) {
			at := paths[file.SHA256]
			if _, done := f.Digests[file.SHA256]; done || at == "" {
				continue
			}
			if err := f.open(file.SHA256, at); err != nil {
				return nil, err
			}
		}
		if ds := set.File("deepspeed"); ds != nil && paths[ds.SHA256] != "" {
			loaded, err := wheels.Load(ctx, paths[ds.SHA256], known)
			if err != nil {
				return nil, err
			}
			f.Wheels[ds.SHA256] = &loaded[0]
		}
	}
	return f, nil
}

// openPython reads the archive of a Python that comes along. It must be as safe as when it was
// locked, and the same.
func (f *Files) openPython(python environment.Interpreter, at string) error {
	a, err := environment.OpenArchive(at)
	if err != nil {
		return err
	}
	if a.Tree() != python.Tree || a.Program != python.Program {
		return &environment.ArchiveError{File: python.File, Err: errors.New("its files are not those of the lock: lock again")}
	}
	f.Unpacked[python.SHA256] = a.Unpacked
	return nil
}

func (f *Files) open(sum, at string) error {
	a, err := wheel.Open(at)
	if err != nil {
		return err
	}
	defer a.Close()
	for _, m := range a.Members() {
		f.Unpacked[sum] += m.Size
	}
	f.Digests[sum], err = installedDigest(a)
	if err != nil {
		return fmt.Errorf("%s: %w", path.Base(at), err)
	}
	return nil
}

// notes are the files of a dist-info that installers write.
func notes() []string {
	return []string{"INSTALLER", "REQUESTED", "RECORD", "direct_url.json"}
}

// installedDigest is the digest of the files that a wheel puts into site-packages, computed as
// place.py does for installed ones.
func installedDigest(a *wheel.Archive) (string, error) {
	var lines []string
	for _, m := range a.Members() {
		if strings.Count(m.Name, "/") != 1 || !strings.HasSuffix(m.Name, ".dist-info/RECORD") {
			continue
		}
		r, err := a.Open(m.Name)
		if err != nil {
			return "", err
		}
		defer r.Close()
		rows, err := wheel.ParseRecord(r)
		if err != nil {
			return "", err
		}
		info := path.Dir(m.Name)
		for _, row := range rows {
			name, ok := installedName(row.Path)
			if !ok || row.Algorithm == "" || path.Dir(name) == info && slices.Contains(notes(), path.Base(name)) {
				continue
			}
			sum, err := sumOf(a, row)
			if err != nil {
				return "", err
			}
			lines = append(lines, name+"\x00"+sum+"\n")
		}
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "")))
	return hex.EncodeToString(sum[:]), nil
}

// sumOf is the sha256 of a file, from RECORD if it has it.
func sumOf(a *wheel.Archive, row wheel.RecordEntry) (string, error) {
	if row.Algorithm == "sha256" {
		sum, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(row.Digest, "="))
		return hex.EncodeToString(sum), err
	}
	return wheel.HashMember(a, row.Path)
}

// installedName is the path of a wheel's file below site-packages; ok is false if it goes
// elsewhere.
func installedName(name string) (installed string, ok bool) {
	top, rest, _ := strings.Cut(name, "/")
	if !strings.HasSuffix(top, ".data") {
		return path.Clean(name), true
	}
	scheme, rest, _ := strings.Cut(rest, "/")
	return path.Clean(rest), scheme == "purelib" || scheme == "platlib"
}
