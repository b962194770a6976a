package environment

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"deps.dev/util/pypi"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

// Lock lists every file of an environment, for each kind of node.
type Lock struct {
	Format      int    `json:"format"` // 1
	Name        string `json:"name"`
	Python      string `json:"python"` // X.Y
	Interpreter string `json:"interpreter,omitempty"`
	Folder      string `json:"folder,omitempty"`
	Request     string `json:"request"` // sha256 of all that was asked for
	Sets        []Set  `json:"sets"`    // one for each kind

	Dir string `json:"-"` // the folder of the lock file, to which File.Path is relative
}

// Program is the interpreter on nodes: the one in environment.yaml, or pythonX.Y. A node to which
// dsbuild sends a Python may have neither.
func (l *Lock) Program() string { return cmp.Or(l.Interpreter, "python"+l.Python) }

// Set is the files for one kind of node.
type Set struct {
	Platform
	Digest    string       `json:"digest"`           // identifies the environment that these files make
	Python    *Interpreter `json:"python,omitempty"` // comes along; nil: the node's own
	Installer File         `json:"installer"`        // uv's wheel, which comes along and is not part of the environment
	Files     []File       `json:"files"`            // sorted by name
}

// File is one wheel.
type File struct {
	Name    string `json:"name"` // normalised as PEP 503 says
	Version string `json:"version"`
	File    string `json:"file"` // its file name, without a folder
	SHA256  string `json:"sha256"`
	Size    int64  `json:"size"`
	Path    string `json:"path,omitempty"` // of a local wheel, relative to the lock; "": from an index
}

const (
	lockFormat = 1
	maxLock    = 16 << 20 // bytes of a lock file
	maxFiles   = 5000     // of a set
)

// lockError is the error of a lock file that cannot be used. The line is 0 for the file as a whole.
func lockError(path string, line int, err error) error {
	if line > 0 {
		path += fmt.Sprintf(":%d", line)
	}
	err = fault.WithHint(fmt.Errorf("%s: %w", path, err), "create it: dsbuild env lock environment.yaml")
	return fault.WithCode(err, 2)
}

// ReadLock reads the lock file at path.
func ReadLock(path string) (*Lock, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, lockError(path, 0, errors.Unwrap(err))
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxLock+1))
	if err != nil {
		return nil, lockError(path, 0, err)
	}
	l, err := parseLock(text)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) && !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return nil, lockError(path, 0, errors.New("not a lockfile (JSON written by dsbuild env lock)"))
	}
	if err != nil {
		return nil, lockError(path, lineOf(text, err), err)
	}
	l.Dir = filepath.Dir(path)
	return l, nil
}

// lineOf returns the line of the file in which an error of JSON lies; 0 for any other error.
func lineOf(text []byte, err error) int {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	at := int64(-1)
	switch {
	case errors.As(err, &syntax):
		at = syntax.Offset - 1 // of the wrong byte, which may end its line
	case errors.As(err, &kind):
		at = kind.Offset
	}
	if at < 0 || at > int64(len(text)) {
		return 0
	}
	return 1 + bytes.Count(text[:at], []byte("\n"))
}

// parseLock reads the text of a lock file. It refuses every entry that could mean another file.
func parseLock(text []byte) (*Lock, error) {
	if len(text) > maxLock {
		return nil, fmt.Errorf("not a lockfile: larger than %d MiB", maxLock>>20)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var l Lock
	if err := d.Decode(&l); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("unexpected text after the lockfile's JSON")
	}
	return &l, l.check()
}

var hexSum = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (l *Lock) check() error {
	switch {
	case l.Format != lockFormat:
		return fmt.Errorf("unsupported lockfile format %d: this dsbuild reads only %d", l.Format, lockFormat)
	case !nameForm.MatchString(l.Name), !pythonForm.MatchString(l.Python), !hexSum.MatchString(l.Request),
		l.Interpreter != "" && !programForm.MatchString(l.Interpreter), l.Folder != "" && !folderForm.MatchString(l.Folder):
		return errors.New("invalid name, python, interpreter, folder or request")
	case len(l.Sets) == 0:
		return errors.New("no sets of files")
	}
	for _, s := range l.Sets {
		if err := s.check(l.Python); err != nil {
			return fmt.Errorf("%s: %w", s.Platform, err)
		}
	}
	return nil
}

func (s Set) check(python string) error {
	if !slices.Contains(machines(), s.Machine) || !glibcForm.MatchString(s.Glibc) {
		return errors.New("invalid machine or glibc")
	}
	if len(s.Files) == 0 || len(s.Files) > maxFiles {
		return fmt.Errorf("invalid number of files: %d", len(s.Files))
	}
	if s.Python != nil {
		if err := s.Python.check(); err != nil {
			return err
		}
	}
	names, files := map[string]bool{}, map[string]bool{s.Installer.File: true}
	for _, f := range append([]File{s.Installer}, s.Files...) {
		// Compare the entry with the name of its file, which contains no path.
		n, err := wheel.ParseFileName(f.File)
		switch {
		case err != nil:
			return fmt.Errorf("%.120q: %w", f.File, err)
		case f.Name != pypi.CanonPackageName(f.Name) || pypi.CanonPackageName(n.Name) != f.Name || n.Version != f.Version:
			return fmt.Errorf("%s: listed as %.80q, version %.80q", f.File, f.Name, f.Version)
		case !hexSum.MatchString(f.SHA256) || f.Size <= 0:
			return fmt.Errorf("%s: invalid sha256 or size", f.File)
		case f.Path != "" && filepath.Base(f.Path) != f.File:
			return fmt.Errorf("%s: path belongs to another file", f.File)
		}
	}
	for _, f := range s.Files {
		if names[f.Name] || files[f.File] {
			return fmt.Errorf("%s is listed twice", f.Name)
		}
		names[f.Name], files[f.File] = true, true
	}
	if want := s.digest(python); s.Digest != want {
		return fmt.Errorf("digest %.12s does not match the files (%.12s): the lockfile was edited by hand", s.Digest, want)
	}
	return nil
}

// CheckInstaller returns an error if a set has another installer than a wheel of uv: every node runs it.
func (l *Lock) CheckInstaller(path string, uv UV) error {
	for _, s := range l.Sets {
		if !slices.Contains(uv.Sums, s.Installer.SHA256) {
			return lockError(path, 0, fmt.Errorf("%s: installer %s (sha256 %.12s) is not uv %s as published",
				s.Platform, s.Installer.File, s.Installer.SHA256, uv.Version))
		}
	}
	return nil
}

// digest identifies the environment: Python, and the files by name and sha256.
func (s Set) digest(python string) string {
	h := sha256.New()
	fmt.Fprintf(h, "environment %d\npython %s\n", lockFormat, python)
	if s.Python != nil {
		fmt.Fprintf(h, "interpreter %s\n", s.Python.SHA256)
	}
	for _, f := range s.Files {
		fmt.Fprintf(h, "%s %s\n", f.SHA256, f.File)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// All lists the files that dsbuild needs on this machine: the wheels, the installer, and the
// interpreter that comes along.
func (s Set) All() []File {
	all := append([]File{s.Installer}, s.Files...)
	if s.Python != nil {
		p := s.Python
		all = append(all, File{Name: "python", File: p.File, SHA256: p.SHA256, Size: p.Size, Path: p.Path})
	}
	return all
}

// Size is the size of all files of the set in bytes.
func (s Set) Size() int64 {
	var n int64
	for _, f := range s.Files {
		n += f.Size
	}
	return n
}

// File returns the file of a package; nil if the set has none.
func (s Set) File(name string) *File {
	for i := range s.Files {
		if s.Files[i].Name == name {
			return &s.Files[i]
		}
	}
	return nil
}

// For returns the set for a node. If several serve it, this is the one with the newest glibc. If
// none does, the error says why.
func (l *Lock) For(f node.Facts) (*Set, error) {
	for i := range slices.Backward(l.Sets) { // one to which a Python comes along serves every node of its kind
		if l.Sets[i].Python != nil && l.Sets[i].serves(f) {
			return &l.Sets[i], nil
		}
	}
	if wheel.Minor(f.Python) != l.Python {
		return nil, fmt.Errorf("environment requires Python %s, but the node's interpreter is %s",
			l.Python, node.PlainVersion(f.Python))
	}
	if f.Tag != "cp"+strings.ReplaceAll(l.Python, ".", "") {
		return nil, fmt.Errorf("environment requires CPython with the GIL, but the node's interpreter is %s",
			node.PlainVersion(f.Tag))
	}
	for i := range slices.Backward(l.Sets) {
		if l.Sets[i].serves(f) {
			return &l.Sets[i], nil
		}
	}
	return nil, fmt.Errorf("lockfile has no files for %s with glibc %s",
		node.PlainVersion(f.Platform), node.PlainVersion(f.Glibc))
}

// Brings reports whether a Python comes along for a kind of node.
func (l *Lock) Brings() bool {
	return slices.ContainsFunc(l.Sets, func(s Set) bool { return s.Python != nil })
}

// Write writes the lock to path, and reports whether it differs from the file that was there.
func (l *Lock) Write(path string) (changed bool, err error) {
	text, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return false, err
	}
	text = append(text, '\n')
	if _, err := parseLock(text); err != nil {
		return false, fmt.Errorf("new lockfile: %w", err)
	}
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return false, nil
	}
	return true, atomicfile.Write(path, bytes.NewReader(text), 0o644)
}
