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
	"io/fs"
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

// Lock lists every file of an environment, for each node type.
type Lock struct {
	Format      int    `json:"format"` // 1
	Name        string `json:"name"`
	Python      string `json:"python"` // X.Y
	Interpreter string `json:"interpreter,omitempty"`
	Folder      string `json:"folder,omitempty"`
	Request     string `json:"request"` // sha256 of the inputs of the resolution
	Sets        []Set  `json:"sets"`    // one per node type

	Dir string `json:"-"` // the lockfile's directory, to which File.Path is relative
}

// Program returns the interpreter on nodes: the one in environment.yaml, or pythonX.Y. A node that
// receives a Python archive may have neither.
func (l *Lock) Program() string { return cmp.Or(l.Interpreter, "python"+l.Python) }

// Set lists the files for one node type.
type Set struct {
	Platform
	Digest    string       `json:"digest"`           // identifies the resulting environment
	Python    *Interpreter `json:"python,omitempty"` // bundled Python, if any
	Installer File         `json:"installer"`        // uv's wheel, which is not part of the environment
	Files     []File       `json:"files"`            // sorted by name
}

// File is one wheel.
type File struct {
	Name    string `json:"name"` // normalized (PEP 503)
	Version string `json:"version"`
	File    string `json:"file"` // file name
	SHA256  string `json:"sha256"`
	Size    int64  `json:"size"`
	Path    string `json:"path,omitempty"` // path of a local wheel, relative to the lockfile; empty for a wheel from an index

	Named bool `json:"named,omitempty"` // listed in environment.yaml, so a .pth file of the package may run code
}

const (
	lockFormat = 1
	maxLock    = 16 << 20 // bytes of a lockfile
	maxFiles   = 5000     // of a set
)

// lockAgain is the command that writes the lockfile of the running command, in a hint.
func lockAgain(flags ...string) string { return fault.Command{Do: "env lock", Flags: flags}.String() }

// ErrNotLock means that a file is something else than a lockfile.
var ErrNotLock = errors.New("not a lockfile (JSON written by dsbuild env lock)")

// lockError returns the error for a lockfile that cannot be used. A line of zero means the whole file.
func lockError(path string, line int, err error) error {
	hint := "restore the lockfile, or create a new one: " + lockAgain("--upgrade")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		hint = "create the lockfile: " + lockAgain()
	case errors.Is(err, ErrNotLock):
		hint = "specify the file that dsbuild env lock has written: its name ends in .lock"
	}
	if line > 0 {
		path += fmt.Sprintf(":%d", line)
	}
	return fault.WithCode(fault.WithHint(fmt.Errorf("%s: %w", path, err), "%s", hint), 2)
}

// ReadLock reads the lockfile at path.
func ReadLock(path string) (*Lock, error) {
	f, err := wheel.OpenFile(path)
	if err != nil {
		return nil, lockError(path, 0, fmt.Errorf("cannot read the lockfile: %w", errors.Unwrap(err)))
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxLock+1))
	if err != nil {
		return nil, lockError(path, 0, err)
	}
	l, err := parseLock(text)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) && !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return nil, lockError(path, 0, ErrNotLock)
	}
	if err != nil {
		return nil, lockError(path, lineOf(text, err), err)
	}
	l.Dir = filepath.Dir(path)
	return l, nil
}

// lineOf returns the line of a JSON error in text. It returns 0 for any other error.
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

// parseLock reads the text of a lock file. It rejects every entry that could mean another file.
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
		return errors.New("no file sets")
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
			return fmt.Errorf("%s: file name does not match name %.80q, version %.80q", f.File, f.Name, f.Version)
		case !hexSum.MatchString(f.SHA256) || f.Size <= 0:
			return fmt.Errorf("%s: invalid sha256 or size", f.File)
		case f.Path != "" && filepath.Base(f.Path) != f.File:
			return fmt.Errorf("%s: path has a different file name", f.File)
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

// CheckInstaller returns an error if a set's installer, which runs on the nodes, is not a published wheel of uv.
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

// All returns the files that must be on the control node: the wheels, the installer and the
// bundled Python.
func (s Set) All() []File {
	all := append([]File{s.Installer}, s.Files...)
	if s.Python != nil {
		p := s.Python
		all = append(all, File{Name: "python", File: p.File, SHA256: p.SHA256, Size: p.Size, Path: p.Path})
	}
	return all
}

// Size returns the total size of the wheels in bytes.
func (s Set) Size() int64 {
	var n int64
	for _, f := range s.Files {
		n += f.Size
	}
	return n
}

// File returns a package's file, or nil.
func (s Set) File(name string) *File {
	for i := range s.Files {
		if s.Files[i].Name == name {
			return &s.Files[i]
		}
	}
	return nil
}

// Torch returns the version of torch in the set; empty if it has none.
func (s Set) Torch() string {
	if f := s.File("torch"); f != nil {
		return f.Version
	}
	return ""
}

// For returns the set for a node. If several are compatible, it returns the set with the newest glibc. If none
// is compatible, the error describes why.
func (l *Lock) For(f node.Facts) (*Set, error) {
	for i := range slices.Backward(l.Sets) { // a set with a bundled Python does not need the node's Python
		if l.Sets[i].Python != nil && l.Sets[i].serves(f) {
			return &l.Sets[i], nil
		}
	}
	another := fault.SetInterpreter("a CPython " + l.Python + " on the node or an archive to bundle").String()
	if wheel.Minor(f.Python) != l.Python {
		return nil, fault.WithHint(fmt.Errorf("environment requires Python %s, but the node's interpreter is %s",
			l.Python, node.PlainVersion(f.Python)), "%s", another)
	}
	if f.Tag != "cp"+strings.ReplaceAll(l.Python, ".", "") {
		return nil, fault.WithHint(fmt.Errorf("environment requires CPython with the GIL, but the node's interpreter is %s",
			node.PlainVersion(f.Tag)), "%s", another)
	}
	for i := range slices.Backward(l.Sets) {
		if l.Sets[i].serves(f) {
			return &l.Sets[i], nil
		}
	}
	return nil, fault.WithHint(fmt.Errorf("lockfile has no files for %s with glibc %s",
		node.PlainVersion(f.Platform), node.PlainVersion(f.Glibc)), "re-lock for all nodes: %s", lockAgain())
}

// BundlesPython reports whether any set has a bundled Python.
func (l *Lock) BundlesPython() bool {
	return slices.ContainsFunc(l.Sets, func(s Set) bool { return s.Python != nil })
}

// Write writes the lockfile to path, and reports whether the file changed.
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
