package nightly

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/internal/yamldoc"
	"github.com/dsbuild/dsbuild/release/index"
)

// Config is the content of a nightly file.
type Config struct {
	Dir     string // the directory of the state between nights
	Keep    int    // builds of each wheel
	Sources []Source
	Entries []Entry  // each is built from each source
	Index   *Index   // nil to publish nothing
	Deploy  *Deploy  // nil to deploy nothing
	Notify  []string // the command that gets the notice of a failed night, if any
}

// Source is the origin of wheels.
type Source struct {
	Name      string
	DeepSpeed string // a value of --deepspeed, the newest release by default
}

// Index is where wheels are published.
type Index struct{ Dir, URL string }

// Deploy selects the nodes that get the wheels. Its fields are named like the flags of dsbuild deploy.
type Deploy struct {
	Inventory string
	Source    string // the name of the source whose wheels they get
	Canary    string // the nodes to deploy to first, as for --limit, if any
	Gate      string // a shell command, or check, that decides after the canary whether the others follow, if any
	Limit     string // of all
	Env       string // an environment file to deploy with the wheel, if any
	Flags     map[string]string
}

// The predefined sources.
const (
	releaseSource = "release"
	mainSource    = "main"
	mainURL       = "git+https://github.com/deepspeedai/DeepSpeed@master"
)

// leastConfig is the hint for a file without wheels.
const leastConfig = `add at least "wheels: {wheels: [{gpu: A100}]}"`

// defaultKeep is how many builds of each wheel are kept.
const defaultKeep = 7

// Read reads the nightly file at path. It reports all errors together, as a *lineerr.Error. Relative paths are
// relative to its directory.
func Read(path string) (Config, error) {
	tables, err := compat.NewTables()
	if err != nil {
		return Config{}, err
	}
	r := &reader{Reader: &yamldoc.Reader{
		File: path, Kind: "nightly file", Least: leastConfig, Share: "set common values under wheels: defaults",
	}, dir: filepath.Dir(path), tables: tables}
	body, err := r.Load(path, nil)
	if err != nil {
		return Config{}, err
	}
	var c Config
	if body != nil {
		c = r.readConfig(body)
	}
	return c, r.Err()
}

type reader struct {
	*yamldoc.Reader
	dir    string
	tables *compat.Tables
}

// readConfig reads the whole file.
func (r *reader) readConfig(body yamldoc.Node) Config {
	c := Config{Dir: r.resolvePath("nightly"), Keep: defaultKeep, Sources: []Source{{Name: releaseSource}}}
	given := false
	keys := []string{"wheels", "sources", "dir", "keep", "index", "deploy", "notify"}
	for _, p := range r.Pairs(body, "the nightly file", keys) {
		switch p.Key {
		case "wheels":
			given = true
			c.Entries = r.readWheels(p)
		case "sources":
			c.Sources = r.readSources(p)
		case "dir":
			c.Dir = r.resolveDir(p, r.singleLine(p))
		case "keep":
			n, bad := strconv.Atoi(r.singleLine(p))
			if bad != nil || n < 1 || n > 1000 {
				r.Add(r.Place(p.Node), "", "keep must be a number of builds from 1 to 1000")
			}
			c.Keep = n
		case "index":
			c.Index = r.readIndex(p)
		case "deploy":
			c.Deploy = r.readDeploy(p)
		case "notify":
			c.Notify = r.readCommand(p)
		}
	}
	if c.Index != nil && filepath.Clean(c.Index.Dir) == filepath.Clean(c.Dir) {
		r.Add(lineerr.Position{File: r.File}, "use another directory for one of them",
			"dir and index are the same directory, all of which is published")
	}
	if !given {
		r.Add(r.Place(body), leastConfig, "the file lists no wheels")
	}
	if d := c.Deploy; d != nil && len(c.Sources) > 0 {
		d.Source = cmp.Or(d.Source, c.Sources[0].Name)
		if !slices.ContainsFunc(c.Sources, func(s Source) bool { return s.Name == d.Source }) {
			r.Add(lineerr.Position{File: r.File}, "", "unknown source %q under deploy: not in sources", lineerr.Clip(d.Source))
		}
	}
	return c
}

// resolvePath resolves a path relative to the file's folder.
func (r *reader) resolvePath(name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(r.dir, name)
}

// resolveDir reads a path, which may not exist yet, relative to the file's folder.
func (r *reader) resolveDir(p yamldoc.Pair, text string) string {
	dir := r.resolvePath(text)
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		r.Add(r.Place(p.Node), "", "%s is not a directory", lineerr.Clip(dir))
	}
	return dir
}

// singleLine reads a single-line value.
func (r *reader) singleLine(p yamldoc.Pair) string {
	word, ok := r.Text(p.Node, p.Key)
	if !ok {
		return ""
	}
	if strings.TrimSpace(word) == "" || strings.ContainsAny(word, "\n\r\x00") {
		r.Add(r.Place(p.Node), "", "%s must be one line of text", p.Key)
		return ""
	}
	return word
}

// readSources reads the sources: predefined sources, or a name with a value of --deepspeed.
func (r *reader) readSources(p yamldoc.Pair) []Source {
	var all []Source
	seen := map[string]bool{}
	for _, n := range r.Items(p.Node, "sources") {
		s := Source{}
		if word, ok := yamldoc.Scalar(n); ok {
			s.Name = word
			switch word {
			case releaseSource:
			case mainSource:
				s.DeepSpeed = mainURL
			default:
				r.Add(r.Place(n), "define other sources as {name: fork, deepspeed: git+URL@REF}",
					"unknown source %q: want release or main", lineerr.Clip(word))
			}
		} else {
			for _, q := range r.Pairs(n, "a source", []string{"name", "deepspeed"}) {
				switch q.Key {
				case "name":
					s.Name = r.singleLine(q)
				case "deepspeed":
					s.DeepSpeed = r.singleLine(q)
				}
			}
			if strings.HasPrefix(s.DeepSpeed, "./") || strings.HasPrefix(s.DeepSpeed, "../") {
				s.DeepSpeed = r.resolvePath(s.DeepSpeed)
			}
			if s.Name == "" || s.DeepSpeed == "" {
				r.Add(r.Place(n), "", "a source requires name and deepspeed")
			}
		}
		if seen[s.Name] {
			r.Add(r.Place(n), "use unique names", "duplicate source name %q", lineerr.Clip(s.Name))
		}
		seen[s.Name] = true
		all = append(all, s)
	}
	return all
}

// readIndex reads the index's directory and, if set, its URL.
func (r *reader) readIndex(p yamldoc.Pair) *Index {
	out := &Index{}
	pairs := []yamldoc.Pair{{Key: "dir", At: p.At, Node: p.Node}}
	if _, folder := yamldoc.Scalar(p.Node); !folder {
		pairs = r.Pairs(p.Node, "index", []string{"dir", "url"})
	}
	for _, q := range pairs {
		text := r.singleLine(q)
		switch q.Key {
		case "dir":
			out.Dir = r.resolveDir(q, text)
			if err := index.CheckDir(text); text != "" && err != nil {
				r.Add(r.Place(q.Node), fault.Hint(err), "%v", err)
			}
		case "url":
			out.URL = text
			if err := index.CheckURL(text); text != "" && err != nil {
				r.Add(r.Place(q.Node), "", "url under index: %v", err)
			}
		}
	}
	if out.Dir == "" {
		r.Add(p.At, "", "missing dir under index")
	}
	return out
}

// readCommand reads a program, or a list of a program and its arguments. It is run without a shell.
func (r *reader) readCommand(p yamldoc.Pair) []string {
	const try = "use a program, or a list of a program and its arguments: [mail, -s, nightly, admin@example.org]"
	var words []string
	switch word, ok := yamldoc.Scalar(p.Node); {
	case ok:
		words = []string{word}
	case yamldoc.IsMapping(p.Node):
		r.Add(r.Place(p.Node), "use the form notify: [PROGRAM, ARGUMENT]",
			"notify must be a list, not a mapping")
		return nil
	default:
		for _, n := range r.RequiredItems(p.Node, "notify") {
			word, _ := r.Text(n, "an entry of notify")
			words = append(words, word)
		}
		if len(words) == 0 {
			return nil
		}
	}
	switch program := words[0]; {
	case strings.TrimSpace(program) == "":
		r.Add(r.Place(p.Node), try, "missing program in notify")
	case strings.Contains(program, " ") || strings.Contains(program, "://"):
		r.Add(r.Place(p.Node), try, "notify is not a program: shell commands and URLs are not supported")
	case strings.Contains(program, "/"):
		words[0] = r.resolvePath(program)
	}
	return words
}

func (r *reader) readDeploy(p yamldoc.Pair) *Deploy {
	out := &Deploy{Flags: map[string]string{}}
	for _, q := range r.Pairs(p.Node, "deploy", []string{
		"inventory", "source", "canary", "gate", "limit", "env",
		// The others are flags of dsbuild deploy.
		"forks", "serial", "max-fail", "timeout", "bwlimit", "relay", "in-use", "deps", "verify",
		"via", "partition", "account", "qos", "time", "slurm-wait",
	}) {
		text := r.singleLine(q)
		switch q.Key {
		case "inventory":
			out.Inventory = text
			if !strings.Contains(text, ":") && !strings.Contains(text, "[") {
				out.Inventory = r.resolvePath(text)
			}
		case "source":
			out.Source = text
		case "canary":
			out.Canary = text
		case "gate":
			out.Gate = text
		case "limit":
			out.Limit = text
		case "env":
			out.Env = r.resolvePath(text)
		default:
			out.Flags[q.Key] = text
		}
	}
	if out.Env != "" && out.Flags["deps"] != "" {
		r.Add(p.At, "", "env and deps under deploy are mutually exclusive: an environment includes all packages")
	}
	if out.Gate != "" && out.Canary == "" {
		r.Add(p.At, "", "gate under deploy requires canary: it runs after the canary")
	}
	if out.Inventory == "" {
		r.Add(p.At, "", "missing inventory under deploy")
	}
	return out
}
