package nightly

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/internal/yamldoc"
	"github.com/dsbuild/dsbuild/pipeline/planner"
	"github.com/dsbuild/dsbuild/wheel"
)

// Entry is a wheel of the file.
type Entry struct {
	Name string
	wheel.Request
}

// setting is a key with its value: one text of planner.Set, or several.
type setting struct {
	key   string
	texts []string
	at    lineerr.Position
}

// readWheels reads the entries. Their settings override the defaults.
func (r *reader) readWheels(p yamldoc.Pair) []Entry {
	var defaults []setting
	var items []yamldoc.Node
	listed := false
	for _, q := range r.Pairs(p.Node, "wheels", []string{"defaults", "wheels"}) {
		switch q.Key {
		case "defaults":
			defaults, _ = r.readSettings(q.Node, "defaults", planner.Keys())
		case "wheels":
			listed = true
			items = r.RequiredItems(q.Node, "wheels")
		}
	}
	if yamldoc.IsMapping(p.Node) && !listed {
		r.Add(p.At, leastConfig, "the file lists no wheels")
	}
	var entries []Entry
	first := map[string]lineerr.Position{} // by name
	for _, n := range items {
		before := len(r.Problems)
		own, name := r.readSettings(n, "an entry of wheels", append([]string{"name"}, planner.Keys()...))
		if len(r.Problems) > before {
			continue
		}
		e := Entry{Name: cmp.Or(name, settingsName(own), "wheel")}
		r.setRequest(&e.Request, slices.Concat(defaults, own))
		if at, twice := first[e.Name]; twice {
			r.Add(r.Place(n), "use unique names",
				"duplicate entry name %q; first used at %s", lineerr.Clip(e.Name), at)
		}
		first[e.Name] = r.Place(n)
		entries = append(entries, e)
	}
	return entries
}

// setRequest applies the settings. Later settings override earlier ones: a GPU also replaces an arch.
func (r *reader) setRequest(q *wheel.Request, settings []setting) {
	of := map[string]setting{}
	for _, s := range settings {
		if s.key == "arch" || s.key == "gpu" {
			delete(of, "arch")
			delete(of, "gpu")
		}
		of[s.key] = s
	}
	for _, key := range planner.Keys() {
		for _, text := range of[key].texts {
			if err := planner.Set(q, key, text); err != nil {
				r.addWrong(of[key].at, err)
			}
		}
	}
	if q.Machine == planner.EveryMachine {
		r.Add(of["machine"].at, "write an entry for each machine", "machine %s: an entry is one wheel", q.Machine)
	}
	for key, err := range planner.UnknownNames(r.tables, *q) {
		r.addWrong(of[key].at, err)
	}
}

// addWrong adds an invalid value. A value that several entries share is added once.
func (r *reader) addWrong(at lineerr.Position, err error) {
	text, hint := planner.FileText(err)
	same := func(p lineerr.Problem) bool { return p.Position == at && p.Message == text }
	if !slices.ContainsFunc(r.Problems, same) {
		r.Add(at, hint, "%s", text)
	}
}

// settingsName returns the name of an unnamed entry, made from its settings.
func settingsName(settings []setting) string {
	var words []string
	for _, s := range settings {
		words = append(words, s.key+"="+lineerr.HideCredentials(strings.Join(s.texts, "+")))
	}
	return strings.Join(words, ",")
}

// readSettings reads the settings of an entry, or the defaults. Only an entry has a name.
func (r *reader) readSettings(n yamldoc.Node, what string, known []string) (settings []setting, name string) {
	at := map[string]lineerr.Position{}
	for _, p := range r.Pairs(n, what, known) {
		words := r.readValue(p)
		switch {
		case words == nil:
		case p.Key == "name":
			name = words[0]
		default:
			at[p.Key] = r.Place(p.Node)
			settings = append(settings, setting{p.Key, words, at[p.Key]})
		}
	}
	_, arch := at["arch"]
	if gpu, both := at["gpu"]; both && arch {
		r.Add(gpu, "", "arch and gpu in %s are mutually exclusive", what)
	}
	return settings, name
}

// readValue returns the words of a value as spelled, because 3.10 is a version. It returns nil for an
// invalid value.
func (r *reader) readValue(p yamldoc.Pair) []string {
	if p.Key == "keep-debug" {
		yes, ok := yamldoc.Bool(p.Node)
		if !ok {
			r.Wrong(p.Node, p.Key+" must be true or false")
			return nil
		}
		return []string{strconv.FormatBool(yes)}
	}
	if !slices.Contains([]string{"arch", "gpu", "ops"}, p.Key) || !yamldoc.IsList(p.Node) {
		if word := r.singleLine(p); word != "" {
			return []string{word}
		}
		return nil
	}
	var words []string
	for _, n := range r.Items(p.Node, p.Key) {
		word := r.singleLine(yamldoc.Pair{Key: p.Key, Node: n})
		if word == "" {
			return nil
		}
		words = append(words, word)
	}
	return words
}
