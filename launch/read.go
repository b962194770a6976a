package launch

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/yamldoc"
)

// Position is the source of a setting: a place in a file, or a flag, whose name is File.
type Position = lineerr.Position

// Error lists all errors in a job.
type Error = lineerr.Error

// Word is one word of a value.
type Word struct {
	Text string
	At   Position
}

// Setting is a key of a job with its value.
type Setting struct {
	Key   string
	Words []Word
	At    Position
}

// Settings are all settings of one source: a file, or the command line.
type Settings struct {
	All   []Setting
	lines []string // of the file
}

// Say adds a flag's setting.
func (s *Settings) Say(key, flag string, words ...string) {
	at := Position{File: flag}
	said := Setting{Key: key, At: at}
	for _, w := range words {
		said.Words = append(said.Words, Word{w, at})
	}
	s.All = append(s.All, said)
}

// Read reads the job file at path, or in if path is "-". If the file is invalid, the error is
// an *Error that lists all errors.
func Read(path string, in io.Reader) (Settings, error) {
	name := path
	if path == "-" {
		name = "stdin"
	}
	meant := map[string]string{}
	for _, k := range Keys() {
		for option := range strings.FieldsSeq(k.sbatch) {
			meant[option] = fmt.Sprintf("did you mean %q?", k.Name)
		}
		switch old := strings.TrimSuffix(meant[k.Flag], "?"); {
		case k.Flag == "":
		case old == "":
			meant[k.Flag] = fmt.Sprintf("did you mean %q?", k.Name)
		default:
			meant[k.Flag] = fmt.Sprintf("%s or %q?", old, k.Name)
		}
	}
	r := &reader{yamldoc.Reader{
		File: name, Kind: "job file", Least: `add at least "script: train.py"`,
		Foreign: meant,
	}}
	body, err := r.Load(path, in)
	if err != nil {
		return Settings{}, err
	}
	var s Settings
	if body != nil {
		for _, p := range r.Pairs(body, "the job file", fileKeys()) {
			words, ok := r.readWords(p)
			if ok {
				s.All = append(s.All, Setting{Key: p.Key, Words: words, At: p.At})
			}
		}
	}
	s.lines = r.Lines
	return s, r.Err()
}

// reader turns a job file into settings.
type reader struct{ yamldoc.Reader }

// readWords reads the value of a key.
func (r *reader) readWords(p yamldoc.Pair) ([]Word, bool) {
	k := keyNamed(p.Key)
	words, ok := []Word{}, true
	_, isBool := yamldoc.Bool(p.Node)
	switch {
	case isBool && k.kind == yesNo:
		text, _ := yamldoc.Spelling(p.Node)
		return []Word{{text, r.Place(p.Node)}}, true
	case yamldoc.IsList(p.Node) && (k.kind == list || k.kind == variables):
		for _, item := range r.Entries(p.Node, p.Key) {
			text, scalar := r.Text(item, "an item of "+p.Key)
			if !scalar {
				ok = false
				continue
			}
			words = append(words, Word{text, r.Place(item)})
		}
		return words, ok
	case yamldoc.IsMapping(p.Node) && k.kind == variables:
		for _, v := range r.Keys(p.Node) {
			text, scalar := yamldoc.Scalar(v.Node)
			if _, isBool := yamldoc.Bool(v.Node); isBool {
				text, scalar = yamldoc.Spelling(v.Node)
			}
			if !scalar {
				r.Wrong(v.Node, "the value of a variable must be a string")
				ok = false
				continue
			}
			words = append(words, Word{v.Key + "=" + text, v.At})
		}
		return words, ok
	}
	text, ok := yamldoc.Scalar(p.Node)
	if several := strings.Fields(text); ok && p.Key == "args" && len(several) > 1 {
		r.Add(r.Place(p.Node), "use args: ["+strings.Join(several, ", ")+"]",
			"args is a single string, which would be passed as one argument")
		return nil, false
	}
	if ok && k.kind != yesNo {
		return []Word{{text, r.Place(p.Node)}}, true
	}
	r.Wrong(p.Node, p.Key+" must be "+k.kind.String())
	return nil, false
}

// texts returns the words without their places.
func (s Setting) texts() []string {
	return lists.Map(s.Words, func(w Word) string { return w.Text })
}

// text joins the words.
func (s Setting) text() string { return strings.Join(s.texts(), " ") }

// fileKeys are the keys that a file may hold.
func fileKeys() []string {
	names := lists.Map(Keys(), func(k Key) string { return k.Name })
	return append(names, "script", "module", "args")
}

func keyNamed(name string) Key {
	switch name {
	case "script", "module":
		return Key{Name: name, kind: text}
	case "args":
		return Key{Name: name, kind: list}
	}
	all := Keys()
	return all[slices.IndexFunc(all, func(k Key) bool { return k.Name == name })]
}
