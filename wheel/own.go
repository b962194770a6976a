package wheel

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"deps.dev/util/pypi"
)

// environmentFile matches files of an environment, below its prefix, that belong to the interpreter, to the
// standard library, to conda or to the environment itself. It is not used for files in site-packages or bin.
var environmentFile = regexp.MustCompile(
	`^(pyvenv\.cfg$|conda-meta/|s?bin/|Scripts/|include/python|lib(32|64)?/(python|pypy)|lib/libpython)`)

// ownedCommand matches the commands of the interpreter and of the environment, not others that only begin
// like them: python-argcomplete-check-easy-install-script, activate-global-python-argcomplete.
var ownedCommand = regexp.MustCompile(`(?i)^(((python|pypy)[\d.]*[dtw]*(-config)?|pydoc[\d.]*)(\.exe|\.bat)?|` +
	`(de)?activate(_this)?(\.\w+)?)$`)

// ErrRunsAtStart means that a wheel would run code at each start of Python.
var ErrRunsAtStart = errors.New("runs code at each start of Python")

// CheckOwnFiles rejects a wheel with a file of torch, DeepSpeed, the interpreter, the standard library or the
// environment. It needs no list of installed files; a caller with such a list compares it in addition. A wheel
// that runs code at each start of Python is rejected with ErrRunsAtStart, unless the user listed the package.
func CheckOwnFiles(a *Archive, named bool) error {
	meta, err := a.Metadata()
	if err != nil {
		return err
	}
	entries, err := a.entryPoints()
	if err != nil {
		return err
	}
	distribution := pypi.CanonPackageName(meta.Name)
	for _, m := range a.Members() {
		scheme, below := Place(m.Name)
		if owner := ownerOf(distribution, scheme, below); owner != "" {
			return fmt.Errorf("the wheel of %s would write %s, which belongs to %s", meta.Name, m.Name, owner)
		}
		if scheme == "" && !strings.Contains(below, "/") && slices.Contains([]string{".pth", ".start"}, path.Ext(fold(below))) {
			if err := a.checkStartFile(m.Name, distribution, named); err != nil {
				return fmt.Errorf("the wheel of %s has %s, which %w", meta.Name, m.Name, err)
			}
		}
	}
	for _, e := range entries {
		if owner := ownerOf("", "scripts", e.Name); owner != "" {
			return fmt.Errorf("the wheel of %s would write the command %s, which belongs to %s", meta.Name, e.Name, owner)
		}
	}
	return nil
}

// checkStartFile checks what a .pth or .start file would do at the start of Python, which runs the lines with import of the
// first and calls what the second lists (Python 3.15 or newer, PEP 829), and adds the directories that the first lists to the
// module search path. Format: the documentation of Python's module site.
func (a *Archive) checkStartFile(name, distribution string, named bool) error {
	text, err := a.ReadFile(name, maxText)
	if err != nil {
		return a.damagedError(err)
	}
	for line := range strings.FieldsFuncSeq(string(text), endsLine) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "\ufeff"))
		dir := path.Clean(line)
		switch {
		case line == "" || line[0] == '#':
		case strings.HasPrefix(line, "import"), path.Ext(fold(name)) == ".start":
			if distribution != "setuptools" && !named {
				return ErrRunsAtStart
			}
		case !fs.ValidPath(dir):
			return fmt.Errorf("adds %.80q, outside of site-packages, to the module search path", line)
		default:
			for _, m := range a.members {
				scheme, below := Place(m.Name)
				inside, ok := strings.CutPrefix(fold(below), fold(dir)+"/")
				if owner := ownerOf(distribution, scheme, inside); ok && scheme == "" && owner != "" {
					return fmt.Errorf("adds %s to the module search path, where %s hides what belongs to %s", dir, m.Name, owner)
				}
			}
		}
	}
	return nil
}

// endsLine reports whether Python's str.splitlines breaks a line at r.
func endsLine(r rune) bool {
	return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
}

// Written returns what installers write for a wheel: for each path, as place and name, what is in the file.
func Written(a *Archive) (map[string]string, error) {
	entries, err := a.entryPoints()
	if err != nil {
		return nil, err
	}
	written := map[string]string{}
	for _, e := range entries {
		written[path.Join("bin", e.Name)] = e.Module + ":" + e.Object
	}
	record, err := a.record()
	if err != nil {
		return nil, err
	}
	for _, e := range record {
		scheme, below := Place(e.Path)
		place := map[string]string{"": "site-packages", "scripts": "bin"}[scheme]
		written[path.Join(cmp.Or(place, scheme), below)] = e.Algorithm + "=" + strings.TrimRight(e.Digest, "=")
	}
	return written, nil
}

// ownerOf returns the owner of a file of a scheme, or "" if it can belong to the wheel's distribution.
func ownerOf(distribution, scheme, below string) string {
	switch scheme {
	case "":
		return nameOwner(distribution, below)
	case "scripts":
		if ownedCommand.MatchString(below) {
			return "the environment"
		}
	case "data":
		if environmentFile.MatchString(below) {
			return "the environment"
		}
	}
	return ""
}

// nameOwner returns the owner of a name in site-packages, or "" if it can belong to the distribution. Names are
// compared without case, and modules, extensions and byte code of one name are the same.
func nameOwner(distribution, below string) string {
	top, _, _ := strings.Cut(strings.TrimPrefix(fold(below), "__pycache__/"), "/")
	for _, suffix := range []string{distInfoSuffix, ".egg-info", ".egg", ".egg-link"} {
		if stem, is := strings.CutSuffix(top, suffix); is {
			if name, _, _ := strings.Cut(stem, "-"); !sameName(name, distribution) {
				return name
			}
			return ""
		}
	}
	module, _, _ := strings.Cut(top, ".")
	owner, own := "", false
	switch module {
	case "torch", "torchgen", "functorch":
		owner, own = "torch", distribution == "torch"
	case "triton": // on PyPI and on torch's own indexes
		all := []string{"triton", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu", "triton-rocm", "triton-xpu"}
		owner, own = "triton", slices.Contains(all, distribution)
	case "nvidia":
		owner, own = "NVIDIA's packages", strings.HasPrefix(distribution, "nvidia-")
	case "deepspeed":
		owner, own = "DeepSpeed", distribution == "deepspeed"
	case "sitecustomize", "usercustomize":
		owner = "the interpreter"
	}
	if own {
		return ""
	}
	return owner
}

// fold returns name as a file system that ignores case compares it.
func fold(name string) string { return strings.ToLower(strings.ToUpper(name)) }
