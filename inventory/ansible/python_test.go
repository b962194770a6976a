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
		"'", `"`, `\`, "#", " ", "  ", "=", ",", "[", "]", "{", "}", "(", ")", ":", "a", "b c", "x-y", "/a/b", "8", "10.0.0.9", "True", "None", "0", "7", "1.5", "-", "+", "_",
		"0x", "e3", `\n`, `\x41`, `\'`, `\"`, `\\`, "ä", "'x'", `"y"`, "['a', 1]", "{'k': 'v'}", "(1,)", ".", "\t",
	}
}

// randomTexts are texts of pieces.
func randomTexts(n int) []string {
	random := rand.New(rand.NewPCG(1, 2))
	texts := make([]string, n)
	for i := range texts {
		for range 1 + random.IntN(7) {
			texts[i] += pieces()[random.IntN(len(pieces()))]
		}
	}
	return texts
}

// Plain values and words are those of Python itself.
func TestAsPython(t *testing.T) {
	texts := randomTexts(8_000)
	plain, split := 0, 0
	for i, want := range askPython(t, texts) {
		text := texts[i]
		// An INI value has no space around it, and Ansible falls back to the text.
		if value, ok := plainValue(text); ok && text == strings.TrimSpace(text) {
			plain++
			if !reflect.DeepEqual(value, want[0]) {
				t.Errorf("value %q: %#v, Python has %#v", text, value, want[0])
			}
		}
		var got any
		if words, err := SplitWords(text); err == nil {
			split++
			all := []any{}
			for _, w := range words {
				all = append(all, w)
			}
			got = all
		}
		if !reflect.DeepEqual(got, want[1]) {
			t.Errorf("words of %q: %q, Python has %q", text, got, want[1])
		}
	}
	if plain < 200 || split < 200 {
		t.Errorf("only %d of the texts are plain, and only %d are words", plain, split)
	}
}

// Python reads a written value as it was, in a line of variables and as a word of
// a line of hosts.
func TestPythonReadsLiterals(t *testing.T) {
	texts := append(randomTexts(300), "", "x", "it's", `"`, `'"\`, "a #b", "[1]", "007", "two\nlines", "None", "a,None", "\u2028\u0085", " x", "x ", "{}", "-o ProxyJump=a,b", "10.0", "10.0.0.9", "12")
	var values []any
	for i, a := range texts {
		b := texts[(i+1)%len(texts)]
		values = append(values, a, []any{a, b}, map[string]any{a: b, b: []any{a}})
	}
	var lines, words []string
	for _, v := range values {
		line := Literal(v)
		lines = append(lines, line)
		words = append(words, "x="+Quote(line)+" y")
	}
	for i, got := range askPython(t, lines) {
		if lines[i] != strings.TrimSpace(lines[i]) || !reflect.DeepEqual(got[0], values[i]) {
			t.Errorf("%q is written %s, and Python reads %q", values[i], lines[i], got[0])
		}
	}
	for i, got := range askPython(t, words) {
		if want := []any{"x=" + lines[i], "y"}; !reflect.DeepEqual(got[2], any(want)) {
			t.Errorf("%s is quoted %s, and Python reads %q", lines[i], words[i], got[2])
		}
	}
}
