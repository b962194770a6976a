package pages

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func read(t *testing.T, text string) (Page, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return Read(path)
}

func TestRead(t *testing.T) {
	p, err := read(t, `# A page, and so on

Say `+"`dsbuild gpus`, `make all` *(planned)*\nor `x`"+`.

    one   # a remark
    two \\
      more

<!-- dry run 2: it
     takes long -->
`)
	if err == nil || !strings.Contains(err.Error(), "stands below one") {
		t.Errorf("%v", err)
	}
	p, err = read(t, `# A page, and so on

Say `+"`dsbuild gpus`\nor `make all` *(planned)*"+` or [that](other.md#there).

    one   # a remark
    two \
      more

<!-- by 1: TestA TestB -->
<!-- parse 2: WHY -->
<!-- output: WHY NOT -->
`+"```console\n$ three\nsays\nthis\n$ four\n```\n"+`
<!-- file: a.yaml -->
`+"```yaml\na: 1\n```\n")
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Spans) != 1 || p.Spans[0] != (Span{3, "dsbuild gpus"}) || len(p.Links) != 1 || p.Links[0].Text != "other.md#there" || !slices.Equal(p.Anchors, []string{"a-page-and-so-on"}) {
		t.Errorf("%+v", p)
	}
	if len(p.Blocks) != 3 || p.Blocks[2].File != "a.yaml" || p.Blocks[2].Text != "a: 1\n" {
		t.Fatalf("%+v", p.Blocks)
	}
	plain, marked := p.Blocks[0].Commands, p.Blocks[1].Commands
	if len(plain) != 2 || plain[0].How != Run || plain[0].Line != 6 || plain[1].Text != "two \\\n  more" {
		t.Errorf("%+v", plain)
	}
	if len(marked) != 2 || marked[0].How != By || !slices.Equal(marked[0].Tests, []string{"TestA", "TestB"}) || marked[0].Output != "says\nthis\n" || !marked[0].Loose || marked[1].How != Parse || marked[1].Why != "WHY" {
		t.Errorf("%+v", marked)
	}
}

// A block of unknown purpose, and a mark without a text or a block, are mistakes.
func TestMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"<!-- parse: WHY -->\n\nText.\n":                              "page.md:1: the mark \"parse\" stands before no block",
		"<!-- parse: WHY -->\n":                                       "page.md:1: the mark \"parse\" stands before no block",
		"<!-- parse: WHY -->\n## Next\n\n    one\n":                   "page.md:1: the mark \"parse\" stands before no block",
		"<!-- parse 3: WHY -->\n\n    one\n    two\n":                 "is about command 3, and the block has 2",
		"<!-- parse: -->\n\n    one\n":                                "has no text",
		"<!-- run: often -->\n\n    one\n":                            "wants \"exit CODE\"",
		"<!-- file: a -->\n<!-- parse: WHY -->\n```yaml\na: 1\n```\n": "has no other marks",
		"```yaml\na: 1\n```\n":                                        "page.md:2: the purpose of this yaml block is unknown",
		"```console\nonly output\n```\n":                              "a block without a command",
	} {
		if _, err := read(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// Every link of every page leads to an existing page and heading.
func TestLinks(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"} {
		files = append(files, filepath.Join(root, name))
	}
	anchors := map[string][]string{}
	var all []Page
	for _, file := range files {
		p, err := Read(file)
		if err != nil {
			t.Error(err)
		}
		anchors[file] = p.Anchors
		all = append(all, p)
	}
	for _, p := range all {
		for _, l := range p.Links {
			file, at, _ := strings.Cut(l.Text, "#")
			target := p.Path
			if file != "" {
				target = filepath.Join(filepath.Dir(p.Path), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s:%d: %s: %v", p.Path, l.Line, l.Text, err)
			} else if at != "" && !slices.Contains(anchors[target], at) {
				t.Errorf("%s:%d: %s has no heading %s", p.Path, l.Line, target, at)
			}
		}
	}
}
