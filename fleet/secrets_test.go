package fleet

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// logLines returns the text of a node's log after write has written to it.
func logLines(t *testing.T, h inventory.Host, write func(*Log)) string {
	t.Helper()
	h.Name = "gpu01"
	folder := newLogFolder(Options{
		Command: "test", By: "tester", Reporter: ui.New(io.Discard, ui.Options{}), Logs: Logs{Dir: filepath.Join(t.TempDir(), "logs")},
	}, "run")
	log := folder.newLog(h)
	write(log)
	log.endPhase(true)
	data, err := os.ReadFile(log.Path())
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// asPython is a text as json.dumps writes it on a node: ASCII, and no escapes for HTML.
func asPython(t *testing.T, text string) string {
	t.Helper()
	var out strings.Builder
	for _, r := range text {
		switch {
		case r < 0x80:
			out.WriteRune(r)
		case r < 0x10000:
			out.WriteString(`\u` + strings.ToLower(hex4(r)))
		default:
			r -= 0x10000
			out.WriteString(`\u` + hex4(0xd800+r>>10) + `\u` + hex4(0xdc00+r&0x3ff))
		}
	}
	escaped := strings.ReplaceAll(out.String(), `"`, `\"`)
	var back string
	if err := json.Unmarshal([]byte(`"`+escaped+`"`), &back); err != nil || back != text {
		t.Fatalf("%q is not %q in JSON: %v", escaped, text, err)
	}
	return escaped
}

func hex4(r rune) string {
	const digits = "0123456789abcdef"
	return string([]byte{digits[r>>12&15], digits[r>>8&15], digits[r>>4&15], digits[r&15]})
}

// A secret does not get into a log in any of the forms in which dsbuild, a shell or a program on
// the node writes it.
func TestLogHidesSecretInEveryForm(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{
		"hunter22", `a"b<c>&d`, "pässwörd-ü", "clef-🔑-42", "it's 'quoted'", "two  spaces", "a\ttab here", `back\nslash`,
	} {
		h := inventory.Host{Env: map[string]string{"API_TOKEN": secret}}
		asGo, err := json.Marshal(secret)
		if err != nil {
			t.Fatal(err)
		}
		for form, text := range map[string]string{
			"plain": secret, "shell": remote.Quote(secret), "Go's JSON": string(asGo),
			"one line": ui.OneLine(secret), "in a URL": "https://me:" + strings.Join(strings.Fields(secret), "") + "@index.example/simple",
		} {
			got := logLines(t, h, func(l *Log) { l.Line("out", "before "+text+" behind") })
			if strings.Contains(got, strings.Trim(text, `"'`)) || !strings.Contains(got, "before ") || !strings.Contains(got, "behind") {
				t.Errorf("%q, %s: %s", secret, form, got)
			}
		}
		if strings.ContainsAny(secret, "\t\\") {
			continue // asPython does not write these
		}
		if got := logLines(t, h, func(l *Log) { l.Line("answer", `{"failed":"`+asPython(t, secret)+`"}`) }); !strings.Contains(got, `{"failed":"[API_TOKEN]"}`) {
			t.Errorf("%q, Python's JSON: %s", secret, got)
		}
	}
}

func TestLogHidesLogins(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"https://user:password@index.example/simple":      "https://[login]@index.example/simple",
		"https://user:p@ss@word@index.example/simple":     "https://[login]@index.example/simple",
		"https://token@index.example and ssh://a:b@c/d@e": "https://[login]@index.example and ssh://[login]@c/d@e",
		"https://index.example/a@b":                       "https://index.example/a@b",
		"mail to a@b":                                     "mail to a@b",
	} {
		got := logLines(t, inventory.Host{}, func(l *Log) { l.Line("out", text) })
		if !strings.HasSuffix(got, want+"\n") {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// Values come from the variables, the setup line and the prefix of the inventory. Paths and short
// values stay, unless the name says that the value is a secret.
func TestLogHidesValuesOfInventory(t *testing.T) {
	t.Parallel()
	h := inventory.Host{
		Env:        map[string]string{"INDEX": "https://me:p%40ss%2dword x@index/simple", "LD_LIBRARY_PATH": "/opt/a:/opt/b", "MODE": "fast", "DB_PASSWORD": "abc", "PASSWD": "ab", "KEY_FILE": "first line\nsecond line", "LONG": "abcdef-ghi", "LONGER": "abcdef-ghi-jkl"},
		Setup:      `export WANDB="wandb-1234"; NAME='quoted value' true`,
		ExecPrefix: []string{"enroot", "--env=NGC=nvapi-5678", "-e", "HF=hf_9999999"},
	}
	for text, want := range map[string]string{
		"/opt/a:/opt/b fast ab": "/opt/a:/opt/b fast ab",
		"abc":                   "[DB_PASSWORD]",
		"p%40ss%2dword x":       "[INDEX]",
		"p@ss-word x":           "[INDEX]",
		"p%40ss-word%20x":       "[INDEX]",
		"p%40ss-word+x":         "[INDEX]",
		"first line":            "[KEY_FILE]",
		"second line":           "[KEY_FILE]",
		"abcdef-ghi":            "[LONG]",
		"abcdef-ghi-jkl":        "[LONGER]",
		"wandb-1234":            "[WANDB]",
		"quoted value":          "[NAME]",
		"nvapi-5678":            "[NGC]",
		"hf_9999999":            "[HF]",
	} {
		if got := logLines(t, h, func(l *Log) { l.Line("out", text) }); !strings.HasSuffix(got, want+"\n") {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// A bound that cuts a line inside a secret does not leave a part of it.
func TestLogHidesSecretAtACut(t *testing.T) {
	t.Parallel()
	const secret = "0123456789abcdef0123456789abcdef"
	h := inventory.Host{Env: map[string]string{"API_TOKEN": secret}}
	for name, write := range map[string]func(*lines, string){
		"line":   func(w *lines, said string) { w.take([]byte(strings.Repeat(".", maxLine-10) + said + "\n")) },
		"arrive": func(w *lines, said string) { w.take([]byte(strings.Repeat(".", 2*maxLine-10) + said + "\n")) },
		"pip": func(w *lines, said string) {
			w.take([]byte(`@@dsbuild-0123456789ab {"pip":["` + strings.Repeat(".", maxLine-10) + said + `"]}` + "\n"))
		},
		"end": func(w *lines, said string) {
			for range 3 * maxLog / maxLine {
				w.take([]byte(strings.Repeat(".", maxLine) + "\n" + said + "\n"))
			}
		},
	} {
		got := logLines(t, h, func(l *Log) {
			w := &lines{log: l, kind: "out"}
			write(w, secret)
			w.end()
		})
		for at := range len(secret) - 7 {
			if strings.Contains(got, secret[at:at+8]) {
				t.Errorf("%s: the log shows %s", name, secret[at:at+8])
				break
			}
		}
	}
}

// The log shows which command ran and with which variables, and no value of any.
func TestLogDescribesCommands(t *testing.T) {
	t.Parallel()
	got := asked(remote.Command{
		Argv: []string{"env", "TOKEN=abc", "python", "-c", "import os\nprint(1)", "--name=x"}, About: `{"do":"look"}`,
		Setup: "export A=one B='two words'", Env: map[string]string{"Z": "1", "A": "2"}, EnvNames: []string{"M"},
	})
	want := "env TOKEN=[…] python -c [program of 18 B] --name=[…]\nrequest: {\"do\":\"look\"}\nsetup: export A=[…] B=[…]\nenv: A M Z"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Each node has a file of its own, whose name no node can lead out of the folder.
func TestLogNames(t *testing.T) {
	t.Parallel()
	b := newLogFolder(Options{Reporter: ui.New(io.Discard, ui.Options{}), Logs: Logs{Dir: t.TempDir()}}, "run")
	seen := map[string]bool{}
	for _, name := range []string{"gpu01", "GPU01", "gpu01/train", "gpu01+train", "../../etc/passwd", "a b", "a_b", "ä", strings.Repeat("x", 300), strings.Repeat("x", 301), ""} {
		file := b.fileName(name)
		if filepath.Base(file) != file || seen[strings.ToLower(file)] || len(file) > 255 || !strings.HasSuffix(file, ".log") {
			t.Errorf("%q: %q", name, file)
		}
		seen[strings.ToLower(file)] = true
	}
	if !seen["gpu01.log"] || !seen["gpu01+train.log"] {
		t.Errorf("plain names are changed: %v", seen)
	}
}
