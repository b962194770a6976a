package ansible

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// reference is what Python itself makes of the lines of its input, and what the
// INI plugin of Ansible then does with it.
const reference = `
import ast, json, shlex, sys, warnings
warnings.simplefilter("ignore")
def plain(v):
    if isinstance(v, (list, tuple, set)): return [plain(i) for i in v]
    if isinstance(v, dict):
        if not all(isinstance(k, str) for k in v): raise ValueError
        return {k: plain(i) for k, i in v.items()}
    if isinstance(v, (bytes, complex)) or v is ...: raise ValueError
    if isinstance(v, float) and v in (float("inf"), float("-inf")): raise ValueError
    if isinstance(v, int) and not isinstance(v, bool) and abs(v) >= 2**63: raise ValueError
    return v
for line in sys.stdin:
    text = json.loads(line)
    try: value = plain(ast.literal_eval(text))
    except (ValueError, SyntaxError): value = text
    words = []
    for comments in (False, True):
        try: words.append(shlex.split(text, comments))
        except ValueError: words.append(None)
    print(json.dumps([value, *words]))
`

// askPython returns Python's answers about texts.
func askPython(t *testing.T, texts []string) [][]any {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	var in bytes.Buffer
	enc := json.NewEncoder(&in)
	for _, text := range texts {
		if err := enc.Encode(text); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(python, "-c", reference)
	cmd.Stdin, cmd.Stderr = &in, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all [][]any
	for line := range strings.Lines(string(out)) {
		dec := json.NewDecoder(strings.NewReader(line))
		dec.UseNumber()
		var one []any
		if err := dec.Decode(&one); err != nil {
			t.Fatal(err)
		}
		for i := range one {
			one[i] = plain(one[i])
		}
		all = append(all, one)
	}
	if len(all) != len(texts) {
		t.Fatalf("%d answers to %d texts", len(all), len(texts))
	}
	return all
}

// pieces are what random texts are made of.
func pieces() []string {
	return []string{
		"'", `"`, `\`, "#", " ", "  ", "=", ",", "[", "]", "{", "}", "(", ")", ":", "a", "b c", "True", "None", "0", "7", "1.5", "-", "+", "_",
		"0x", "e3", `\n`, `\x41`, `\'`, `\"`, `\\`, "ä", "'x'", `"y"`, "['a', 1]", "{'k': 'v'}", "(1,)", ".", "\t",
	}
}

// Literals and words are those of Python itself.
func TestAsPython(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var texts []string
	for range 8_000 {
		var text strings.Builder
		for range 1 + random.IntN(7) {
			text.WriteString(pieces()[random.IntN(len(pieces()))])
		}
		texts = append(texts, text.String())
	}
	wrong, literals := 0, 0
	for i, want := range askPython(t, texts) {
		text := texts[i]
		// An INI value has no space around it, and Ansible falls back to the text.
		if text == strings.TrimSpace(text) {
			got := literal(text)
			if want[0] != any(text) {
				literals++
			}
			if !reflect.DeepEqual(got, want[0]) {
				wrong++
				t.Errorf("literal %q: %#v, Python has %#v", text, got, want[0])
			}
		}
		for j, comments := range []bool{false, true} {
			var got any
			if words, err := Split(text, comments); err == nil {
				all := []any{}
				for _, w := range words {
					all = append(all, w.Text)
				}
				got = all
			}
			if !reflect.DeepEqual(got, want[1+j]) {
				wrong++
				t.Errorf("words of %q: %q, Python has %q", text, got, want[1+j])
			}
		}
		if wrong > 20 {
			t.Fatal("enough")
		}
	}
	if literals < 200 {
		t.Errorf("only %d of the texts are literals", literals)
	}
}

// What is written is read again.
func FuzzLiteral(f *testing.F) {
	for _, text := range []string{"", "x", "it's", `"`, `'"\`, "a #b", "[1]", "007", "two\nlines", "None", "\u2028\u0085", " x", "{}"} {
		f.Add(text, text)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if !utf8.ValidString(a) || !utf8.ValidString(b) {
			return
		}
		for _, value := range []any{a, []any{a, b}, map[string]any{a: b, b: []any{a}}} {
			line := Literal(value)
			if got := literal(strings.TrimSpace(line)); !reflect.DeepEqual(got, value) {
				t.Errorf("%q is written %s and read %q", value, line, got)
			}
			words, err := Split("x="+Quote(line)+" y", true)
			if err != nil || len(words) != 2 || words[0].Text != "x="+line {
				t.Errorf("%s is quoted %s and read %v, %v", line, Quote(line), words, err)
			}
		}
	})
}
