package yamldoc_test

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/goccy/go-yaml/ast"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/yamldoc"
)

func newReader() *yamldoc.Reader {
	return &yamldoc.Reader{File: "x.yaml", Kind: "list", Least: "give a wheel", Share: "use defaults"}
}

// mistake is the text and the hint of the mistakes that read records about a text.
func mistake(text string, read func(*yamldoc.Reader, ast.Node)) string {
	r := newReader()
	if body := r.Body([]byte(text)); body != nil {
		read(r, body)
	}
	err := r.Err()
	if err == nil {
		return ""
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	if try := fault.Hint(err); try != "" {
		first += " | " + try
	}
	return first
}

// A file that is no YAML document of one kind is refused with its place, before anything is read.
func TestFileAsAWhole(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"good":           {"a: 1\n", ""},
		"with a mark":    {"\ufeffa: 1\n", ""},
		"one document":   {"---\na: 1\n", ""},
		"a directive":    {"%YAML 1.2\n---\na: 1\n...\n", ""},
		"empty":          {"", "x.yaml:1:1: empty list | give a wheel"},
		"a comment":      {"# nothing\n", "x.yaml:1:1: empty list | give a wheel"},
		"two documents":  {"a: 1\n---\nb: 2\n", "x.yaml:3:1: unexpected second YAML document: want one list per file"},
		"too large":      {strings.Repeat("#", 1<<20+1), "x.yaml: file is larger than 1 MiB"},
		"as large":       {"a: 1\n" + strings.Repeat("#", 1<<20-5), ""},
		"binary":         {"a: \x00", "x.yaml: file is not UTF-8 text"},
		"latin 1":        {"a: \xe4", "x.yaml: file is not UTF-8 text"},
		"a tab":          {"a:\n\tb: 1\n", "x.yaml:2:1: tab in indentation: YAML allows only spaces | replace the tabs with spaces"},
		"open":           {"a: [1, 2\n", "x.yaml:1:4: "},
		"a range":        {"a: [{b: gpu[01-02]}]\n", "x.yaml:1:12: ',' or '}' must be specified | quote names with brackets: \"gpu[01-16]\""},
		"deep in flow":   {"a: " + strings.Repeat("[", 10_000), "x.yaml:1:44: nested too deeply"},
		"deep in dashes": {strings.Repeat("- ", 10_000) + "a", "x.yaml:1:81: nested too deeply"},
		"deep by spaces": {"a:\n" + strings.Repeat(" ", 3000) + "b: 1", "x.yaml:2:3001: nested too deeply"},
		"deep by keys":   {strings.Repeat("? ", 10_000) + "a", "x.yaml:1:81: nested too deeply"},
	} {
		got := mistake(c.text, func(*yamldoc.Reader, ast.Node) {})
		if got != c.want && !(name == "open" && strings.HasPrefix(got, c.want)) {
			t.Errorf("%s: %s\nwant %s", name, got, c.want)
		}
	}
}

// Keys are checked, with the place of each and the nearest known one.
func TestPairs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"wheels: 1\narch: 2\n":           "",
		"whels: 1\n":                     `x.yaml:1:1: unknown key "whels" in the list | did you mean "wheels"?`,
		"a: 1\n":                         `x.yaml:1:1: unknown key "a" in the list | known keys: wheels, arch`,
		"{wheels: 1, b: 2}":              `x.yaml:1:13: unknown key "b" in the list | known keys: wheels, arch`,
		"[1]":                            "x.yaml:1:1: the list must be a mapping (key: value), not a list",
		"text":                           "x.yaml:1:1: the list must be a mapping (key: value), not a string",
		"7":                              "x.yaml:1:1: the list must be a mapping (key: value), not a number",
		"7.5":                            "x.yaml:1:1: the list must be a mapping (key: value), not a decimal number",
		".inf":                           "x.yaml:1:1: the list must be a mapping (key: value), not a decimal number",
		"true":                           "x.yaml:1:1: the list must be a mapping (key: value), not a boolean",
		"null":                           "x.yaml:1:1: the list must be a mapping (key: value), not null | set a value, or remove the key",
		"&a 1":                           "x.yaml:1:1: the list must be a mapping (key: value), not an anchor or alias (not supported) | use defaults",
		"!!str a":                        "x.yaml:1:1: the list must be a mapping (key: value), not a tag (not supported)",
		"|\n  a\n":                       "x.yaml:1:1: the list must be a mapping (key: value), not a string",
		"<<: {a: 1}\n":                   "x.yaml:1:1: merge keys (<<) are not supported | use defaults",
		strings.Repeat("k", 300) + ": 1": `x.yaml:1:1: unknown key "` + strings.Repeat("k", 60) + `..." in the list | known keys: wheels, arch`,
	} {
		got := mistake(text, func(r *yamldoc.Reader, n ast.Node) { r.Pairs(n, "the list", []string{"wheels", "arch"}) })
		if got != want {
			t.Errorf("%.40q: %s\nwant %s", text, got, want)
		}
	}
	any := func(r *yamldoc.Reader, n ast.Node) { r.Pairs(n, "env", nil) }
	if got := mistake("1: a\n", any); got != "x.yaml:1:1: key in env must be a string | quote it" {
		t.Error(got)
	}
	r := newReader()
	all := r.Pairs(r.Body([]byte("\"a b\": 1\nc: [2]\n")), "env", nil)
	if len(all) != 2 || all[0].Key != "a b" || all[1].Key != "c" || all[1].At.Line != 2 || r.Err() != nil {
		t.Errorf("%+v %v", all, r.Err())
	}
}

// Lists are checked; one that must not be empty says what to do.
func TestItems(t *testing.T) {
	t.Parallel()
	read := func(items bool) func(*yamldoc.Reader, ast.Node) {
		return func(r *yamldoc.Reader, n ast.Node) {
			for _, p := range r.Pairs(n, "the list", []string{"a"}) {
				if items {
					r.Items(p.Node, "a")
				} else {
					r.Entries(p.Node, "a")
				}
			}
		}
	}
	for text, want := range map[string][2]string{
		"a: [1]": {}, "a:\n- 1\n": {}, "a: []": {"x.yaml:1:4: a is empty | remove the key, or add an entry", ""},
		"a: 1":         {"x.yaml:1:4: a must be a list, not a number", "x.yaml:1:4: a must be a list, not a number"},
		"a:":           {"x.yaml:1:4: a must be a list, not null | set a value, or remove the key", "x.yaml:1:4: a must be a list, not null | set a value, or remove the key"},
		"a:\n  b: 1\n": {"x.yaml:2:3: a must be a list, not a mapping", "x.yaml:2:3: a must be a list, not a mapping"},
	} {
		if got := mistake(text, read(true)); got != want[0] {
			t.Errorf("%q: %s\nwant %s", text, got, want[0])
		}
		if got := mistake(text, read(false)); got != want[1] {
			t.Errorf("%q: %s\nwant %s", text, got, want[1])
		}
	}
}

// Numbers keep the spelling of the file: 3.10 is not 3.1.
func TestScalar(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"3.10": "3.10", "8.0": "8.0", "007": "007", "0x10": "0x10", "'a b'": "a b", "|\n  one\n  two\n": "one\ntwo\n", "1_000": "1_000"} {
		r := newReader()
		if got, ok := yamldoc.Scalar(r.Body([]byte(text))); !ok || got != want {
			t.Errorf("%q: %q %v, want %q", text, got, ok, want)
		}
	}
	for _, text := range []string{"true", "null", "[1]", "{a: 1}", ".nan"} {
		r := newReader()
		if got, ok := yamldoc.Scalar(r.Body([]byte(text))); ok {
			t.Errorf("%s is the text %q", text, got)
		}
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "x.yaml")
	if err := os.WriteFile(file, []byte("a: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, in := range map[string]io.Reader{file: nil, "-": strings.NewReader("a: 1\n")} {
		if body, err := newReader().Load(path, in); err != nil || body == nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	_, err := newReader().Load(file+".missing", nil)
	if err == nil || err.Error() != "x.yaml: cannot read the list: no such file or directory" || !errors.Is(err, fs.ErrNotExist) || fault.ExitCode(err) != 2 {
		t.Error(err)
	}
	broken := errors.New("broken pipe")
	if _, err := newReader().Load("-", iotest.ErrReader(broken)); !errors.Is(err, broken) || fault.ExitCode(err) != 2 {
		t.Error(err)
	}
	if _, err := newReader().Load(filepath.Dir(file), nil); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Error(err)
	}
}

// FuzzBody: whatever the text is, it is read or refused with a place in the file.
func FuzzBody(f *testing.F) {
	for _, text := range []string{"a: 1\n", "a: [1, {b: 2}]\n", "- &a 1\n- *a\n", "a: |\n  x\n", "<<: *a", "? a\n: b\n", "\ta", "a: 'x", "---\na\n...\nb", "!!map {}", "a:\r\n  b"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := newReader()
		body := r.Body([]byte(text))
		if body == nil {
			if r.Err() == nil {
				t.Error("nothing is read, and nothing is wrong")
			}
			return
		}
		for _, p := range r.Pairs(body, "the file", nil) {
			if p.At.Line < 1 || p.At.Column < 1 {
				t.Errorf("%q stands at %v", p.Key, p.At)
			}
			yamldoc.Scalar(p.Node)
			r.Entries(p.Node, p.Key)
		}
		if err := r.Err(); err != nil && !strings.HasPrefix(err.Error(), "x.yaml") {
			t.Error(err)
		}
	})
}

// Values keep the spelling of the file: 3.10 is a version and not 3.1.
func TestSpelling(t *testing.T) {
	t.Parallel()
	r := newReader()
	type value struct {
		spelling                    string
		spelled, plain, list, pairs bool
		line                        int
	}
	got := map[string]value{}
	for _, p := range r.Keys(r.Body([]byte("a: 3.10\nb: 'yes'\nc: true\nd: [x]\ne: {k: v}\n"))) {
		text, ok := yamldoc.Spelling(p.Node)
		got[p.Key] = value{text, ok, yamldoc.IsPlain(p.Node), yamldoc.IsList(p.Node), yamldoc.IsMapping(p.Node), p.At.Line}
	}
	want := map[string]value{
		"a": {"3.10", true, false, false, false, 1}, "b": {"", false, true, false, false, 2}, "c": {"true", true, false, false, false, 3},
		"d": {"", false, false, true, false, 4}, "e": {"", false, false, false, true, 5},
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
