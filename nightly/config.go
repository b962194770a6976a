package nightly

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/index"
	"github.com/dsbuild/dsbuild/internal/diagnostic"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/yamldoc"
	"github.com/dsbuild/dsbuild/pipeline/matrix"
	"github.com/dsbuild/dsbuild/pipeline/planner"
	"github.com/dsbuild/dsbuild/publish"
)

// Config is the content of a nightly file.
type Config struct {
	Dir     string // the folder of everything that one night keeps for the next
	Keep    int    // builds of each wheel
	Sources []Source
	Entries []matrix.Entry // each is built from each source
	Index   *Index         // nil: not published
	Deploy  *Deploy        // nil: not deployed
	Notify  *Notify        // nil: no notice of a failed night
}

// Source is the origin of wheels.
type Source struct {
	Name      string
	DeepSpeed string // as --deepspeed takes it; "" is the newest release
}

// Index is where wheels are published.
type Index struct{ Dir, URL string }

// Deploy says which nodes get the wheels. Its fields are named like the flags of dsbuild deploy.
type Deploy struct {
	Inventory string
	Source    string // the name of the source whose wheels they get
	Canary    string // these nodes first: a --limit; "" for none
	Limit     string // of all
	Env       string // an environment file: the nodes get the whole environment with the wheel; "": the wheel alone
	Flags     map[string]string
}

// The sources that have a name of their own.
const (
	releaseSource = "release"
	mainSource    = "main"
	mainURL       = "git+https://github.com/deepspeedai/DeepSpeed@master"
)

// defaultKeep is how many builds of each wheel are kept.
const defaultKeep = 7

// DeployFlags are the keys of deploy that are flags of dsbuild deploy.
func DeployFlags() []string {
	return []string{
		"forks", "serial", "max-fail", "timeout", "bwlimit", "relay", "in-use", "deps", "verify",
		"via", "partition", "account", "qos", "time", "slurm-wait",
	}
}

// Read reads the nightly file at path. It reports all mistakes together, as a
// *diagnostic.Error. Relative paths are taken from its folder.
func Read(path string) (Config, error) {
	tables, err := compat.NewTables()
	if err != nil {
		return Config{}, err
	}
	r := &reader{Reader: &yamldoc.Reader{
		File: path, Kind: "nightly file", Least: "give at least \"wheels: wheels.yaml\"", Share: "put what wheels share into defaults of wheels",
	}, dir: filepath.Dir(path), tables: tables}
	r.Secret = regexp.MustCompile(`(?i)\b(url|https?)\b`) // the URL of notify
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

// readConfig reads the whole file, and the file of wheels that it names.
func (r *reader) readConfig(body yamldoc.Node) Config {
	c := Config{Dir: r.resolvePath("nightly"), Keep: defaultKeep, Sources: []Source{{Name: releaseSource}}}
	given := false
	for _, p := range r.Pairs(body, "the nightly file", []string{"wheels", "sources", "dir", "keep", "index", "deploy", "notify"}) {
		switch p.Key {
		case "wheels":
			given = true
			c.Entries = r.readWheels(p)
		case "sources":
			c.Sources = r.readSources(p)
		case "dir":
			c.Dir = r.resolvePath(r.singleLine(p))
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
			c.Notify = r.readNotify(p)
		}
	}
	if !given {
		r.Add(r.Place(body), `give "wheels": a matrix, or a matrix file (docs/farm.md)`, "the file lists no wheels")
	}
	if d := c.Deploy; d != nil && len(c.Sources) > 0 {
		if d.Source == "" {
			d.Source = c.Sources[0].Name
		}
		known := false
		for _, s := range c.Sources {
			known = known || s.Name == d.Source
		}
		if !known {
			r.Add(diagnostic.Position{File: r.File}, "", "deploy names the source %q, which is not in sources", diagnostic.Clip(d.Source))
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

// singleLine is the value of a key that takes one line.
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

// readWheels reads the matrix, from this file or from the file that it names.
func (r *reader) readWheels(p yamldoc.Pair) []matrix.Entry {
	var entries []matrix.Entry
	list := &r.List
	if name, ok := yamldoc.Scalar(p.Node); ok {
		file, err := matrix.Read(r.resolvePath(name))
		if err != nil {
			r.addOfFile(p.Node, err)
			return nil
		}
		entries, list = file.Entries, file.Mistakes()
	} else {
		entries = matrix.Entries(r.Reader, p.Node)
	}
	for _, e := range entries {
		planner.AddMistakes(list, r.tables, e)
		if e.DeepSpeed != "" {
			r.Add(p.At, "add it to sources", "wheel %s has a key deepspeed: use sources instead", diagnostic.Clip(e.Name))
		}
	}
	if list != &r.List {
		r.Problems = append(r.Problems, list.Problems...)
	}
	return entries
}

// addOfFile adds the mistakes in a matrix file to those of this file. A file that cannot be read is
// a mistake of the value that names it.
func (r *reader) addOfFile(n yamldoc.Node, err error) {
	var wrong *diagnostic.Error
	if !errors.As(err, &wrong) || wrong.Cause != nil {
		r.Add(r.Place(n), fault.Hint(err), "%s", err)
		return
	}
	r.Problems = append(r.Problems, wrong.Problems...)
}

// readSources reads the sources: known words, or a name with a value of --deepspeed.
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
				r.Add(r.Place(n), "give another source a name: {name: fork, deepspeed: git+URL@REF}", "source %q is neither release nor main", diagnostic.Clip(word))
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
				r.Add(r.Place(n), "", "a source needs a name and a deepspeed")
			}
		}
		if seen[s.Name] {
			r.Add(r.Place(n), "give each its own name", "a second source with the name %q", diagnostic.Clip(s.Name))
		}
		seen[s.Name] = true
		all = append(all, s)
	}
	return all
}

// readIndex reads the folder of the index and, if it is given, its address.
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
			out.Dir = r.resolvePath(text)
			if to, err := publish.ParseTarget(text); text != "" && (err != nil || !to.Folder()) {
				r.Add(r.Place(q.Node), "name a folder, and copy it with dsbuild publish or another program", "the index of a night goes into a folder")
			}
		case "url":
			out.URL = text
			if err := index.CheckURL(text); text != "" && err != nil {
				r.Add(r.Place(q.Node), "", "url of index %v", err)
			}
		}
	}
	if out.Dir == "" {
		r.Add(p.At, "", "index has no dir")
	}
	return out
}

// readNotify is a URL or a command. A URL that begins with $ is that of a variable
// of the environment. The URL is often a secret, so no message repeats it.
func (r *reader) readNotify(p yamldoc.Pair) *Notify {
	out := &Notify{}
	for _, q := range r.Pairs(p.Node, "notify", []string{"url", "command"}) {
		switch q.Key {
		case "url":
			out.URL = r.singleLine(q)
			if name, variable := strings.CutPrefix(out.URL, "$"); variable {
				name = strings.Trim(name, "{}")
				if out.URL = os.Getenv(name); out.URL == "" {
					r.Add(r.Place(q.Node), "set it in the environment that starts dsbuild nightly", "url is $%s, but the environment has no such variable", diagnostic.Clip(name))
					continue
				}
			}
			at, err := url.Parse(out.URL)
			if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
				r.Problems = append(r.Problems, diagnostic.Problem{ // without the line, which holds the secret
					Position: r.Place(q.Node), Message: "url of notify is not an http or https address",
					Hint: "as in https://hooks.example.org/dsbuild, or $NAME of a variable that holds it",
				})
			}
		case "command":
			out.Command = r.readCommand(q)
		}
	}
	if (out.URL == "") == (len(out.Command) == 0) && r.Err() == nil {
		r.Add(p.At, "", "notify needs either a url or a command")
	}
	return out
}

// readCommand is a program, or a list of it and its arguments. No shell reads it.
func (r *reader) readCommand(p yamldoc.Pair) []string {
	var words []string
	if word, ok := yamldoc.Scalar(p.Node); ok {
		words = []string{word}
	} else {
		items := r.RequiredItems(p.Node, "command")
		if len(items) == 0 {
			return nil
		}
		for _, n := range items {
			word, _ := r.Text(n, "a word of command")
			words = append(words, word)
		}
	}
	if len(words) == 0 || strings.TrimSpace(words[0]) == "" {
		r.Add(r.Place(p.Node), "a program, or a list of it and its arguments: [mail, -s, nightly, admin@example.org]", "command has no program")
		return nil
	}
	if strings.Contains(words[0], "/") {
		words[0] = r.resolvePath(words[0])
	} else if strings.Contains(words[0], " ") {
		r.Add(r.Place(p.Node), "write a list: [mail, -s, nightly, admin@example.org]", "command %q: dsbuild does not run it in a shell", diagnostic.Clip(words[0]))
	}
	return words
}

func (r *reader) readDeploy(p yamldoc.Pair) *Deploy {
	out := &Deploy{Flags: map[string]string{}}
	for _, q := range r.Pairs(p.Node, "deploy", append([]string{"inventory", "source", "canary", "limit", "env"}, DeployFlags()...)) {
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
		case "limit":
			out.Limit = text
		case "env":
			out.Env = r.resolvePath(text)
		default:
			out.Flags[q.Key] = text
		}
	}
	if out.Env != "" && out.Flags["deps"] != "" {
		r.Add(p.At, "", "deploy has env and deps: an environment has all its packages")
	}
	if out.Inventory == "" {
		r.Add(p.At, "", "deploy has no inventory")
	}
	return out
}
