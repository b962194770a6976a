package htmlpage_test

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/dsbuild/dsbuild/internal/htmlpage"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// hostile is a text that runs, asks for something or hides what follows, wherever it is not escaped.
const hostile = `</script><script>hacked=1</script><img src=x onerror="hacked=2"><svg onload=hacked=3>'"` + "`${hacked=4}`" +
	`<!--<script>{{.}}javascript:hacked=5&lt;script&gt;` + "\u2028\u202e\x1b[31m"

// fill sets every text of a value, and makes one element of every list.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(hostile)
		if v.Type() != reflect.TypeFor[htmlpage.Text]() { // dsbuild's own words
			v.SetString(ui.Clean(hostile))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Bool:
		v.SetBool(true)
	}
}

// A text stays text, in whichever field it is: also in those that only dsbuild fills.
func TestHostileTextsInEveryField(t *testing.T) {
	t.Parallel()
	var p htmlpage.Page
	fill(reflect.ValueOf(&p).Elem())
	var out bytes.Buffer
	if err := p.Write(&out); err != nil {
		t.Fatal(err)
	}
	root, err := html.Parse(bytes.NewReader(out.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for n := range root.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		count[n.Data]++
		for _, a := range n.Attr {
			if a.Key == "src" || a.Key == "style" || strings.HasPrefix(a.Key, "on") || strings.HasPrefix(a.Val, "javascript:") {
				t.Errorf("<%s %s=%q>", n.Data, a.Key, a.Val)
			}
		}
	}
	if count["script"] != 1 || count["img"] != 0 || count["svg"] != 1 || count["style"] != 1 {
		t.Errorf("the page has %d scripts, %d images, %d drawings and %d styles; want the script, none, the bar, one",
			count["script"], count["img"], count["svg"], count["style"])
	}
	if at := bytes.IndexAny(out.Bytes(), "\x1b\u2028"); at >= 0 {
		t.Errorf("the page has a control character after %q", out.Bytes()[max(0, at-60):at])
	}
}

func TestPolicyForbidsWhatIsNotInThePage(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := (htmlpage.Page{Title: "nothing"}).Write(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"default-src &#39;none&#39;", "style-src &#39;sha256-", "script-src &#39;sha256-", "trusted-types &#39;none&#39;"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the policy lacks %s", want)
		}
	}
	if strings.Contains(out.String(), "unsafe") {
		t.Error("the policy allows something unsafe")
	}
}

// A command to copy is one that runs: the words around it are not part of it.
func TestSplitFindsTheCommandOfAHint(t *testing.T) {
	t.Parallel()
	for hint, want := range map[htmlpage.Text][]htmlpage.Text{
		"build a wheel for it: dsbuild wheel --arch 7.5":                               {"build a wheel for it: ", "dsbuild wheel --arch 7.5", ""},
		"build one with: dsbuild wheel --arch 8.0 (the arch of your GPUs), or name it": {"build one with: ", "dsbuild wheel --arch 8.0", " (the arch of your GPUs), or name it"},
		"build one with: dsbuild wheel --bundle, or pass --bundle DIR":                 {"build one with: ", "dsbuild wheel --bundle", ", or pass --bundle DIR"},
		"to roll back: dsbuild rollback INVENTORY --limit gpu1; or not":                {"to roll back: ", "dsbuild rollback INVENTORY --limit gpu1", "; or not"},
		"dsbuild deploy brings it the wheel":                                           {"dsbuild deploy brings it the wheel", "", ""},
		"is the node switched on?":                                                     {"is the node switched on?", "", ""},
	} {
		got := hint.Split()
		if !slices.Equal([]htmlpage.Text{got.Before, got.Command, got.After}, want) {
			t.Errorf("%q: %q, want %q", hint, got, want)
		}
	}
}
