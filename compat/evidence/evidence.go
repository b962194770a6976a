// Package evidence determines whether two versions of DeepSpeed's sources give a compiler the same op. It reads an
// op's files like a preprocessor for one machine, as far as the machine decides: it ignores comments, line breaks
// and branches for other machines. It does not depend on toolchains.
package evidence

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"
)

// The machines that evidence is about, as `uname -m` calls them.
const (
	x86 = "x86_64"
	arm = "aarch64"
)

// Machines lists the machines that evidence is about.
func Machines() []string { return []string{x86, arm} }

// Sources are the files of a tree of DeepSpeed that decide what its ops are.
type Sources struct {
	files   map[string]string // by their path in the tree
	defined map[string]bool   // the macros that a file of the tree defines or undefines
	read    map[string]*unit  // what a machine sees of a file, by machine and path
	modules map[string]*module

	builders map[string]builder // by op
}

// Piece is a part of an op: what a machine sees of a file, or what a class of op_builder decides.
type Piece struct{ Name, Digest string }

// Sum returns the digest of an op: of all its pieces.
func Sum(pieces []Piece) string {
	var all strings.Builder
	for _, p := range pieces {
		fmt.Fprintf(&all, "%s %s\n", p.Digest, p.Name)
	}
	return Digest(all.String())
}

// Digest returns the first 16 hexadecimal digits of the sha256 of a text.
func Digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// DigestOf returns a file's digest: of the statements for Python, the text for a patch, and the tokens for C++. The
// type is determined by the name.
func DigestOf(name, text string) (string, error) {
	switch path.Ext(name) {
	case ".py":
		all, err := statements(text)
		return Digest(definition(all)), err
	case ".patch":
		return Digest(text), nil
	}
	lines, err := tokens(text, func(string) (bool, bool) { return false, false })
	return Digest(strings.Join(lines, "\n")), err
}

var macros = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*(?:define|undef)[ \t]+(\w+)`)

// New returns the sources that consist of the given files, by their path in the tree.
func New(files map[string]string) *Sources {
	s := &Sources{
		files: map[string]string{}, defined: map[string]bool{}, read: map[string]*unit{}, modules: map[string]*module{},
		builders: map[string]builder{},
	}
	for name, text := range files {
		if !counts(name) {
			continue
		}
		s.files[name] = text
		for _, m := range macros.FindAllStringSubmatch(text, -1) {
			s.defined[m[1]] = true
		}
	}
	return s
}

// accelerator names the ops whose builder is in op_builder/cpu.
const accelerator = "accelerator/cuda_accelerator.py"

// counts reports whether a file of the tree may be part of an op.
func counts(name string) bool {
	if strings.HasSuffix(name, ".py") {
		return name == accelerator || path.Dir(name) == "op_builder" || path.Dir(name) == "op_builder/cpu"
	}
	return strings.HasPrefix(name, "csrc/") || strings.HasPrefix(name, "deepspeed/inference/")
}

// Limits on the files that are read. DeepSpeed's own trees reach a tenth of them.
const (
	maxFile  = 4 << 20
	maxTree  = 64 << 20
	maxFiles = 20000
)

// Read reads the sources of a .tar.gz that has all its files in one folder, as a source distribution does.
func Read(r io.Reader) (*Sources, error) {
	unzipped, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("not a valid .tar.gz: %w", err)
	}
	files, links := map[string]string{}, map[string]string{}
	size := int64(0)
	for archive := tar.NewReader(unzipped); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("not a valid .tar.gz: %w", err)
		}
		_, name, inside := strings.Cut(path.Clean(h.Name), "/")
		if !inside || !counts(name) {
			continue
		}
		switch h.Typeflag {
		case tar.TypeSymlink:
			links[name] = path.Join(path.Dir(name), h.Linkname)
		case tar.TypeLink:
			_, links[name], _ = strings.Cut(path.Clean(h.Linkname), "/")
		case tar.TypeReg:
			if size += h.Size; h.Size > maxFile || size > maxTree || len(files) == maxFiles {
				return nil, fmt.Errorf("%s: larger than dsbuild reads", name)
			}
			text, err := io.ReadAll(archive)
			if err != nil {
				return nil, fmt.Errorf("not a valid .tar.gz: %w", err)
			}
			files[name] = string(text)
		}
	}
	for name, target := range links {
		text, ok := files[target]
		if !ok {
			return nil, fmt.Errorf("%s: a link to no file of the sources", name)
		}
		files[name] = text
	}
	return New(files), nil
}

// Op returns the pieces of an op for a machine: the files that its builder names, with all files of the tree that they
// include, and the classes of op_builder that decide its flags. If it cannot read a file, the error begins with the file's
// name.
func (s *Sources) Op(name, machine string) ([]Piece, error) {
	b, err := s.builder(name)
	if err != nil {
		return nil, err
	}
	c := &closure{sources: s, machine: machine, seen: map[string]bool{}}
	for _, folder := range b.includes {
		c.folders = append(c.folders, path.Clean(folder))
	}
	for _, file := range b.sources {
		if err := c.add(file); err != nil {
			return nil, err
		}
	}
	return append(c.pieces, b.pieces...), nil
}

// closure gathers the files that a compiler reads.
type closure struct {
	sources *Sources
	machine string
	folders []string
	seen    map[string]bool
	pieces  []Piece
}

// add adds a file, and those that it includes: first from its own folder, if the name is in quotes.
func (c *closure) add(name string) error {
	for todo := []string{name}; len(todo) > 0; {
		name, todo = todo[0], todo[1:]
		if c.seen[name] {
			continue
		}
		c.seen[name] = true
		u := c.sources.unit(name, c.machine)
		if u.err != nil {
			return fmt.Errorf("%s: %w", name, u.err)
		}
		c.pieces = append(c.pieces, Piece{name, u.digest})
		for _, include := range u.includes {
			folders := c.folders
			if include[0] == '"' {
				folders = append([]string{path.Dir(name)}, folders...)
			}
			for _, folder := range folders {
				file := path.Join(folder, include[1:len(include)-1])
				if _, ok := c.sources.files[file]; ok {
					todo = append(todo, file)
					break
				}
			}
		}
	}
	return nil
}

// unit is what a machine sees of a file.
type unit struct {
	digest   string
	includes []string // as they are written: "name" or <name>
	err      error
}

func (s *Sources) unit(name, machine string) *unit {
	key := machine + " " + name
	if s.read[key] == nil {
		u := &unit{}
		var lines []string
		if lines, u.err = tokens(s.files[name], func(macro string) (bool, bool) {
			defined, known := knows(machine, macro)
			return defined, known && !s.defined[macro]
		}); u.err == nil {
			u.digest = Digest(strings.Join(lines, "\n"))
			u.includes, u.err = includesOf(lines)
		}
		s.read[key] = u
	}
	return s.read[key]
}
