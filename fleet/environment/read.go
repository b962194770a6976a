package environment

import (
	"io"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"deps.dev/util/pypi"

	"github.com/dsbuild/dsbuild/internal/yamldoc"
)

// These expressions match valid values.
var (
	nameForm    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	pythonForm  = regexp.MustCompile(`^3\.([89]|[1-9]\d)$`) // dsbuild's programs on nodes need 3.8
	programForm = regexp.MustCompile(`^(/[A-Za-z0-9._+/-]+|[A-Za-z0-9][A-Za-z0-9._+-]*)$`)
	archiveForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]*\.(tar\.gz|tgz)$`)
	folderForm  = regexp.MustCompile(`^/[A-Za-z0-9._+/-]+$`)
	torchForm   = regexp.MustCompile(`^\d+(\.\d+)+(\+[a-z0-9]+(\.[a-z0-9]+)*)?$`)
	glibcForm   = regexp.MustCompile(`^2\.\d{1,3}$`)
)

// machines are those for which wheels with a glibc exist.
func machines() []string { return []string{"aarch64", "x86_64"} }

// maxText bounds a path or a requirement, in bytes.
const maxText = 500

// Read reads the environment file at path, or in if path is "-". The error for an invalid file lists all
// errors with their positions.
func Read(path string, in io.Reader) (*Spec, error) {
	r := newReader(path)
	body, err := r.Load(path, in)
	if err != nil {
		return nil, err
	}
	return r.read(body)
}

// reader turns one file into a Spec and collects its errors.
type reader struct{ *yamldoc.Reader }

func newReader(path string) *reader {
	return &reader{&yamldoc.Reader{
		File:  path,
		Kind:  "environment file",
		Least: `set at least "name: train", "python: 3.11" and "requirements: [numpy]"`,
	}}
}

// read reads the whole file.
func (r *reader) read(body yamldoc.Node) (*Spec, error) {
	if body == nil {
		return nil, r.Err()
	}
	s := &Spec{}
	known := []string{
		"name", "python", "interpreter", "folder", "torch", "deepspeed", "companions", "requirements", "nodes",
	}
	given := map[string]bool{}
	for _, p := range r.Pairs(body, "the environment file", known) {
		given[p.Key] = true
		switch p.Key {
		case "name":
			s.Name = r.Form(p.Node, "name", nameForm, "letters, digits, '.', '_' and '-', 64 at most")
		case "python":
			s.Python = r.Form(p.Node, "python", pythonForm, "a version X.Y, 3.8 or newer, such as 3.11")
		case "interpreter":
			r.interpreter(s, p.Node)
		case "folder":
			if s.Folder = r.Form(p.Node, "folder", folderForm, "an absolute path without spaces"); s.Folder != "" {
				s.Folder = path.Clean(s.Folder)
			}
		case "torch":
			s.Torch = r.Form(p.Node, "torch", torchForm, "a version such as 2.15.0 or 2.15.0+cu132")
		case "deepspeed":
			r.deepspeed(s, p.Node)
		case "companions":
			for _, n := range r.Items(p.Node, "companions") {
				s.Wheels = append(s.Wheels, r.wheel(n, "an entry of companions")...)
			}
		case "requirements":
			for _, n := range r.Items(p.Node, "requirements") {
				s.Wanted = append(s.Wanted, r.requirement(n)...)
			}
		case "nodes":
			s.Platforms = r.kinds(p.Node)
		}
	}
	r.checkWhole(s, body, given)
	if err := r.Err(); err != nil {
		return nil, err
	}
	return s, nil
}

// checkWhole checks the rules for several keys together.
func (r *reader) checkWhole(s *Spec, body yamldoc.Node, given map[string]bool) {
	for _, key := range []string{"name", "python"} {
		if !given[key] {
			r.Add(r.Place(body), "", "missing key %q", key)
		}
	}
	if len(r.Problems) == 0 && s.Torch == "" && s.Build == nil && len(s.Wheels)+len(s.Wanted) == 0 {
		r.Add(r.Place(body), "set torch, deepspeed, companions or requirements", "empty environment file")
	}
	if s.Build != nil && !given["torch"] {
		r.Add(s.Build.At, "add torch: 2.15.0, or set deepspeed: to the path of a wheel",
			"missing key \"torch\", which is required to build DeepSpeed")
	}
	seen := map[string]Position{}
	if s.Torch != "" {
		seen["torch"] = r.Place(body)
	}
	for _, w := range s.Wanted {
		d, err := pypi.ParseDependency(w.Text)
		if err != nil {
			continue // reported already
		}
		if at, twice := seen[d.Name]; twice && d.Environment == "" {
			r.Add(w.At, "", "%s is listed twice; first at %s", d.Name, at)
		}
		seen[d.Name] = w.At
	}
}

// interpreter reads the nodes' own Python, or the archives of a bundled Python: one, or a list with
// one per machine.
func (r *reader) interpreter(s *Spec, n yamldoc.Node) {
	items := []yamldoc.Node{n}
	if _, ok := yamldoc.Scalar(n); !ok {
		items = r.Items(n, "interpreter")
	}
	for _, item := range items {
		word, ok := r.Text(item, "an entry of interpreter")
		switch {
		case !ok:
		case archiveForm.MatchString(filepath.Base(word)) && !strings.ContainsAny(word, "\n\r\x00") && len(word) <= maxText:
			if !filepath.IsAbs(word) {
				word = filepath.Join(filepath.Dir(r.File), word)
			}
			s.Archives = append(s.Archives, Text{word, r.Place(item)})
		case len(items) > 1 || item != n:
			r.Add(r.Place(item), "", "an entry of interpreter must be a Python archive (.tar.gz)")
		case strings.HasSuffix(word, ".zst") || strings.HasSuffix(word, ".xz"):
			r.Add(r.Place(item), "use the install_only archive, which is a .tar.gz",
				"interpreter must be a .tar.gz: not every node can unpack %s", path.Ext(word))
		default:
			s.Interpreter = r.Form(item, "interpreter", programForm,
				"a command, an absolute path without spaces, or a Python archive (.tar.gz)")
		}
	}
}

// deepspeed reads the path of a wheel, a list with a wheel for each node type, or a Build.
func (r *reader) deepspeed(s *Spec, n yamldoc.Node) {
	if _, isText := yamldoc.Scalar(n); isText {
		s.Wheels = append(s.Wheels, r.wheel(n, "deepspeed")...)
		return
	}
	if yamldoc.IsList(n) {
		for _, item := range r.Items(n, "deepspeed") {
			s.Wheels = append(s.Wheels, r.wheel(item, "an entry of deepspeed")...)
		}
		return
	}
	s.Build = &Build{At: r.Place(n)}
	for _, p := range r.Pairs(n, "deepspeed", []string{"version", "ops", "arch", "cpu"}) {
		var words []string
		if _, isText := yamldoc.Scalar(p.Node); isText {
			words = r.word(p.Node, p.Key)
		} else {
			for _, item := range r.Items(p.Node, p.Key) {
				words = append(words, r.word(item, p.Key)...)
			}
		}
		switch p.Key {
		case "version":
			s.Build.Version = strings.Join(words, ",")
		case "ops":
			s.Build.Ops = words
		case "arch":
			s.Build.Archs = words
		case "cpu":
			s.Build.CPU = strings.Join(words, ",")
		}
	}
}

// wordForm matches a value of a Build, which becomes the value of a flag.
var wordForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+:/@-]*$`)

func (r *reader) word(n yamldoc.Node, key string) []string {
	if word := r.Form(n, key, wordForm, "one word"); word != "" {
		return []string{word}
	}
	return nil
}

// wheel reads the path of a local wheel, which is relative to the file.
func (r *reader) wheel(n yamldoc.Node, what string) []Text {
	word, ok := r.Text(n, what)
	switch {
	case !ok:
		return nil
	case !strings.HasSuffix(word, ".whl") || strings.ContainsAny(word, "\n\r\x00") || len(word) > maxText:
		r.Add(r.Place(n), "list packages from an index under requirements", "%s must be a path to a wheel (.whl)", what)
		return nil
	}
	if !filepath.IsAbs(word) {
		word = filepath.Join(filepath.Dir(r.File), word)
	}
	return []Text{{word, r.Place(n)}}
}

// requirementForm matches a requirement up to its marker (PEP 508), because pypi.ParseDependency
// accepts numpy=2 as a package name.
var requirementForm = func() *regexp.Regexp {
	const (
		release = `v?(?:\d+!)?\d+(?:\.\d+)*`
		suffix  = `(?:[-_.]?(?:alpha|beta|preview|pre|a|b|c|rc)[-_.]?\d*)?` +
			`(?:-\d+|[-_.]?(?:post|rev|r)[-_.]?\d*)?(?:[-_.]?dev[-_.]?\d*)?`
		version = release + suffix // PEP 440
		local   = version + `(?:\+[a-z0-9]+(?:[-_.][a-z0-9]+)*)?`
		exact   = `(?:==|!=)\s*` + release + `\.\*|===?\s*` + local + `|!=\s*` + local
		one     = `(?:` + exact + `|~=\s*v?(?:\d+!)?\d+(?:\.\d+)+` + suffix + `|(?:<=|>=|<|>)\s*` + version + `)`
		all     = one + `(?:\s*,\s*` + one + `)*(?:\s*,)?`
		name    = `[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?`
		extras  = `\[\s*(?:` + name + `(?:\s*,\s*` + name + `)*)?\s*\]`
	)
	return regexp.MustCompile(`(?i)^` + name + `\s*(?:` + extras + `)?\s*` +
		`(?:` + all + `|\(\s*` + all + `\s*\))?\s*(?:;\s*\S.*)?$`)
}()

// requirement reads a requirement. It rejects URLs, because the lock has none.
func (r *reader) requirement(n yamldoc.Node) []Text {
	word, ok := r.Text(n, "a requirement")
	if !ok {
		return nil
	}
	word = strings.TrimSpace(word)
	_, err := pypi.ParseDependency(word)
	switch {
	case strings.Contains(word, "@"):
		r.Add(r.Place(n), "build a wheel, and list it under companions", "requirements with a URL are not supported")
	case err != nil || !requirementForm.MatchString(word),
		strings.ContainsAny(word, "\n\r\x00\"\\") || len(word) > maxText:
		r.Add(r.Place(n), `use pip's syntax: "numpy>=2,<3"; use single quotes in markers`,
			"invalid requirement %.80q", word)
	default:
		return []Text{{word, r.Place(n)}}
	}
	return nil
}

// kinds reads the node types.
func (r *reader) kinds(n yamldoc.Node) []Platform {
	var kinds []Platform
	for _, entry := range r.Items(n, "nodes") {
		k := Platform{Machine: "x86_64"}
		for _, p := range r.Pairs(entry, "an entry of nodes", []string{"machine", "glibc"}) {
			switch p.Key {
			case "machine":
				k.Machine = r.Form(p.Node, "machine", nameForm, "x86_64 or aarch64")
				if k.Machine != "" && !slices.Contains(machines(), k.Machine) {
					r.Add(r.Place(p.Node), "", "machine must be x86_64 or aarch64")
				}
			case "glibc":
				k.Glibc = r.Form(p.Node, "glibc", glibcForm, "a version such as 2.28")
			}
		}
		switch {
		case len(r.Problems) > 0:
		case k.Glibc == "":
			r.Add(r.Place(entry), "set the oldest glibc of these nodes, from ldd --version", "missing key \"glibc\"")
		case slices.Contains(kinds, k):
			r.Add(r.Place(entry), "", "%s is listed twice", k)
		}
		kinds = append(kinds, k)
	}
	sortPlatforms(kinds)
	return kinds
}
