package environment

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

// Interpreter is an archive of a relocatable Python, which is sent to nodes without a suitable
// Python.
type Interpreter struct {
	File    string `json:"file"` // file name
	SHA256  string `json:"sha256"`
	Size    int64  `json:"size"`
	Path    string `json:"path"`    // relative to the lockfile
	Program string `json:"program"` // the interpreter's path in the archive
	Tree    string `json:"tree"`    // sha256 of the list of its files (Archive.List)
}

// Archive describes an Interpreter's archive, which has a single top-level directory.
type Archive struct {
	Python   string // X.Y
	Machine  string // x86_64, aarch64
	Glibc    string // oldest compatible glibc, X.Y
	Program  string // the interpreter's path
	Unpacked int64  // bytes of all files
	List     string // a line for each file and link, sorted, as interpreter.py writes it
}

// Tree returns a digest of the archive's files.
func (a *Archive) Tree() string {
	sum := sha256.Sum256([]byte(a.List))
	return hex.EncodeToString(sum[:])
}

// The limits of an archive.
const (
	maxEntries  = 100_000
	maxUnpacked = 4 << 30
	maxProgram  = 256 << 20 // bytes of one ELF file of the interpreter
)

// NewArchiveError returns the error for an archive that cannot be used on nodes.
func NewArchiveError(file string, err error) error {
	err = fault.WithHint(fmt.Errorf("%s: %w", file, err),
		"set interpreter: to a relocatable Python for glibc as a .tar.gz, "+
			"such as an install_only archive of python-build-standalone")
	return fault.WithCode(err, 2)
}

// OpenArchive reads the archive at path. It rejects archives that could write outside their
// directory, or that contain anything but directories, files and links.
func OpenArchive(file string) (*Archive, error) {
	f, err := wheel.OpenFile(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	a, err := readArchive(f)
	if err != nil {
		return nil, NewArchiveError(filepath.Base(file), err)
	}
	return a, nil
}

// archiveReader collects the entries of an archive.
type archiveReader struct {
	kinds   map[string]byte   // the type of each entry by its path
	lines   map[string]string // of the list, by path
	targets map[string]string // of links
	heads   map[string][]byte // start of the ELF files that show machine and glibc
	size    int64
}

func readArchive(r io.Reader) (*Archive, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("not a .tar.gz archive: %w", err)
	}
	in := archiveReader{
		kinds: map[string]byte{}, lines: map[string]string{},
		targets: map[string]string{}, heads: map[string][]byte{},
	}
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("corrupt archive: %w", err)
		}
		if err := in.add(h, t); err != nil {
			return nil, err
		}
	}
	if _, err := io.Copy(io.Discard, z); err != nil { // gzip's checksum is at the end
		return nil, fmt.Errorf("corrupt archive: %w", err)
	}
	// Check the archive as a whole: no entry is below a link, and one Python is in it.
	a := &Archive{Unpacked: in.size}
	var lines []string
	for name := range in.kinds {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if kind, ok := in.kinds[dir]; ok && kind != tar.TypeDir {
				return nil, fmt.Errorf("%q is below %q, which is not a directory", name, dir)
			}
		}
		if line, ok := in.lines[name]; ok {
			lines = append(lines, name+"\t"+line+"\n")
		}
	}
	slices.Sort(lines)
	a.List = strings.Join(lines, "")
	return a, in.describeProgram(a)
}

// add reads one entry.
func (in *archiveReader) add(h *tar.Header, body io.Reader) error {
	name, err := checkEntry(h)
	if err != nil || name == "." {
		return err
	}
	if old, twice := in.kinds[name]; twice && (old != tar.TypeDir || h.Typeflag != tar.TypeDir) {
		return fmt.Errorf("duplicate entry %q", name)
	}
	if len(in.kinds) >= maxEntries {
		return fmt.Errorf("more than %d entries", maxEntries)
	}
	in.kinds[name] = h.Typeflag
	switch h.Typeflag {
	case tar.TypeReg:
		if in.size += h.Size; in.size > maxUnpacked {
			return fmt.Errorf("more than %d GiB", maxUnpacked>>30)
		}
		sum, mode := sha256.New(), "file"
		if h.Mode&0o100 != 0 {
			mode = "program"
		}
		if programFiles.MatchString(name) && h.Size <= maxProgram {
			head, err := io.ReadAll(io.TeeReader(body, sum))
			if err != nil {
				return fmt.Errorf("corrupt archive: %w", err)
			}
			in.heads[name] = head
		} else if _, err := io.Copy(sum, body); err != nil {
			return fmt.Errorf("corrupt archive: %w", err)
		}
		in.lines[name] = mode + "\t" + hex.EncodeToString(sum.Sum(nil))
		return nil
	case tar.TypeSymlink:
		// After a name, .. leads elsewhere if that name is a link itself.
		if path.IsAbs(h.Linkname) || !fs.ValidPath(path.Join(path.Dir(name), h.Linkname)) || climbsLate(h.Linkname) {
			return fmt.Errorf("link %q points outside the archive: %q", name, h.Linkname)
		}
		in.targets[name] = path.Join(path.Dir(name), h.Linkname)
		in.lines[name] = "link\t" + h.Linkname
	case tar.TypeLink:
		target := path.Clean(h.Linkname)
		line, ok := in.lines[target]
		if !ok || in.kinds[target] == tar.TypeSymlink {
			return fmt.Errorf("hard link %q points to no file in the archive: %q", name, h.Linkname)
		}
		in.lines[name] = line
	}
	return nil
}

// climbsLate reports whether the target of a link has .. after a name.
func climbsLate(target string) bool {
	named := false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if named {
				return true
			}
		default:
			named = true
		}
	}
	return false
}

// checkEntry returns the clean name of an entry.
func checkEntry(h *tar.Header) (string, error) {
	name := path.Clean(h.Name)
	switch {
	case !fs.ValidPath(name), strings.ContainsFunc(name+h.Linkname, unicode.IsControl):
		return "", fmt.Errorf("invalid path %q", h.Name)
	case !slices.Contains([]byte{tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink}, h.Typeflag):
		return "", fmt.Errorf("%q is a device or another special file", name)
	case h.FileInfo().Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0:
		return "", fmt.Errorf("%q is setuid or setgid", name)
	}
	return name, nil
}

// programFiles matches the ELF files that show the machine and the glibc.
var programFiles = regexp.MustCompile(`^[^/]+/(bin/python3\.\d+|lib/libpython3\.\d+\.so\.1\.0)$`)

// describeProgram finds the interpreter, its version, its machine and its glibc.
func (in *archiveReader) describeProgram(a *Archive) error {
	for name := range in.heads {
		if strings.Contains(name, "/bin/") {
			if a.Program != "" {
				return fmt.Errorf("several Python interpreters: %s and %s", a.Program, name)
			}
			a.Program, a.Python = name, strings.TrimPrefix(path.Base(name), "python")
		}
	}
	if a.Program == "" {
		return errors.New("no Python interpreter: missing DIR/bin/python3.X")
	}
	for name, head := range in.heads {
		f, err := elf.NewFile(bytes.NewReader(head))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		a.Machine = map[elf.Machine]string{elf.EM_X86_64: "x86_64", elf.EM_AARCH64: "aarch64"}[f.Machine]
		symbols, _ := f.ImportedSymbols() // a static program has none
		for _, s := range symbols {
			v, ok := strings.CutPrefix(s.Version, "GLIBC_")
			if ok && glibcForm.MatchString(wheel.Minor(v)) && wheel.CompareVersions(v, a.Glibc) > 0 {
				a.Glibc = wheel.Minor(v)
			}
		}
	}
	if a.Machine == "" || a.Glibc == "" {
		return errors.New("no Python for Linux with glibc on x86_64 or aarch64")
	}
	return nil
}

// check rejects invalid values of a lockfile.
func (i Interpreter) check() error {
	switch {
	case i.File == "" || i.File != path.Base(i.File), !archiveForm.MatchString(i.File), filepath.Base(i.Path) != i.File:
		return fmt.Errorf("invalid Python archive name %.120q", i.File)
	case !hexSum.MatchString(i.SHA256), !hexSum.MatchString(i.Tree), i.Size <= 0:
		return fmt.Errorf("%s: invalid sha256, tree or size", i.File)
	case !fs.ValidPath(i.Program) || !programFiles.MatchString(i.Program) || !folderForm.MatchString("/"+i.Program):
		return fmt.Errorf("%s: invalid program %.120q", i.File, i.Program)
	}
	return nil
}

// chooseInterpreter returns the archive of a Spec for a node type, or nil if the Spec has none.
func (s *Spec) chooseInterpreter(k Platform, dir string) (*Interpreter, error) {
	if len(s.Archives) == 0 {
		return nil, nil
	}
	var others []string
	for _, t := range s.Archives {
		a, err := OpenArchive(t.Text)
		switch {
		case err != nil:
			return nil, err
		case a.Python != s.Python || a.Machine != k.Machine || wheel.CompareVersions(k.Glibc, a.Glibc) < 0:
			others = append(others, fmt.Sprintf("%s has Python %s for %s with glibc %s",
				filepath.Base(t.Text), a.Python, a.Machine, a.Glibc))
			continue
		}
		i := &Interpreter{File: filepath.Base(t.Text), Path: relativePath(dir, t.Text), Program: a.Program, Tree: a.Tree()}
		i.SHA256, i.Size, err = wheel.HashFile(t.Text)
		return i, err
	}
	return nil, resolveErrorf("no archive under interpreter: for Python %s, %s: %s",
		s.Python, k, strings.Join(others, "; "))
}
