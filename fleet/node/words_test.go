package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// However a node writes a line break or a control character, each of its strings is one line of
// harmless text, in every place of a message.
func TestStringsOfNodesAreOneLine(t *testing.T) {
	t.Parallel()
	type inner struct {
		Text string
		Long string `json:"long_text"`
	}
	type message struct {
		Text string
		List []string
		Map  map[string]string
		Deep map[string][]inner
		Ptr  *inner
		Any  any
		Raw  json.RawMessage
	}
	for _, escape := range []string{`\n`, `\t`, `\u000a`, `\u000A`, `\r\n`, `\u000d`, `\u001b[2J`, `\u2028`, `\u0085`, `\u202e`, "\x7f", `\u0000`} {
		bad := `"a` + escape + `gpu02: ok"`
		text := `{"Text":` + bad + `,"List":[` + bad + `],"Map":{` + bad + `:` + bad + `},"Deep":{"k":[{"Text":` + bad + `}]},"Ptr":{"Text":` + bad + `},"Any":` + bad + `}`
		var got message
		if err := node.Decode(json.RawMessage(text), &got); err != nil {
			t.Errorf("%s: %v", escape, err)
			continue
		}
		all := []string{got.Text, got.List[0], got.Deep["k"][0].Text, got.Ptr.Text, fmt.Sprint(got.Any)}
		for key, value := range got.Map {
			all = append(all, key, value)
		}
		for _, s := range all {
			if strings.ContainsAny(s, "\n\t\r\x1b\x00\x7f\u2028\u0085\u202e") || !utf8.ValidString(s) || !strings.HasPrefix(s, "a") || !strings.HasSuffix(s, "gpu02: ok") {
				t.Errorf("%s: %q", escape, s)
			}
		}
	}
	var got message
	if err := node.Decode(json.RawMessage(`{"Ptr":{"long_text":"one\ntwo\u001b[2J"}}`), &got); err != nil || got.Ptr.Long != "one\ntwo" {
		t.Errorf("%+v, %v", got.Ptr, err)
	}
}

// A path of a node stands in a hint only if every shell takes it as one word, and in a sentence only if it
// cannot be read as more of it.
func TestPathsOfNodes(t *testing.T) {
	t.Parallel()
	for path, plain := range map[string]bool{
		"/opt/env/bin/python3.11": true, "~/venv": true, "a+b@c%d,e:f": true, "": false, "/opt/my env": false, "/x;reboot": false, "$(id)": false, "`id`": false, "/a\nb": false, "/é": false, "a'b": false, "*": false, "/x&": false, "/x!y": false, `/x\y z`: false, "/x'y z": false,
	} {
		want := path
		if quoted := path == "/opt/my env" || path == "/é"; quoted {
			want = "'" + path + "'"
		} else if !plain {
			want = "PYTHON"
		}
		if got := node.PlainPath(path, "PYTHON"); got != want {
			t.Errorf("%q in a hint: %q, want %q", path, got, want)
		}
		shown := node.QuotePath(path)
		if plain && shown != path || !plain && (!strings.HasPrefix(shown, `"`) || !strings.HasSuffix(shown, `"`)) || strings.ContainsAny(shown, "\n\x1b") {
			t.Errorf("%q in a sentence: %s", path, shown)
		}
	}
	if got := node.QuotePath("/" + strings.Repeat("x", 10_000)); len(got) > 400 {
		t.Errorf("a path of %d bytes is shown", len(got))
	}
}

func TestVersionsOfNodes(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"2.15.0+cu132": "2.15.0+cu132", "1!2.0-rc_1": "1!2.0-rc_1", "": "", "2.15; rm -rf /": "2.15rm-rf", "2\n3": "23", "2.0\x1b[31m": "2.031m", "２": "", strings.Repeat("9", 500): strings.Repeat("9", 100),
	} {
		if got := node.PlainVersion(version); got != want {
			t.Errorf("%q: %q, want %q", version, got, want)
		}
	}
}

// The words of a node are marked as its own, in one line, and bounded.
func TestWordsOfNode(t *testing.T) {
	t.Parallel()
	err := node.NewNodeError("no\x1b[31m room\nhint: run curl | sh")
	if err.Error() != "node reported: no room hint: run curl | sh" {
		t.Error(err)
	}
	var words *node.NodeError
	if !errors.As(fmt.Errorf("install: %w", err), &words) {
		t.Error("the words are not found in the chain")
	}
	if got := node.NewNodeError(strings.Repeat("x", 1_000_000)).Error(); len(got) > 20_000 {
		t.Errorf("%d bytes", len(got))
	}
}

// A Python that cannot start says why before its last line, and which variables it was given.
func TestPythonThatCannotStart(t *testing.T) {
	t.Parallel()
	broken := &node.ScriptError{Err: errors.New("exit status 1"), Stderr: `Python path configuration:
  PYTHONHOME = '/nowhere'
  PYTHONPATH = (not set)
  program name = 'python3'
Fatal Python error: init_fs_encoding: failed to get the Python codec of the filesystem encoding
Python runtime state: core initialized
ModuleNotFoundError: No module named 'encodings'

Current thread 0x00007f9c4bbcab80 (most recent call first):
  <no Python frame>
`}
	want := "node reported: Fatal Python error: init_fs_encoding: failed to get the Python codec of the filesystem encoding; PYTHONHOME is set to /nowhere (exit status 1)"
	if broken.Error() != want {
		t.Errorf("%v\nwant %s", broken, want)
	}
	f := node.Facts{Missing: []string{"python (/usr/bin/python3: " + broken.Error() + ")"}}
	if hint := f.PythonHint("set python:"); !strings.HasPrefix(hint, "unset PYTHONHOME on the node") {
		t.Errorf("hint: %s", hint)
	}
	seed := `python (/usr/bin/python3: node reported: Fatal Python error: config_init_hash_seed: PYTHONHASHSEED must be "random" or an integer)`
	if hint := (node.Facts{Missing: []string{seed}}).PythonHint("set python:"); !strings.HasPrefix(hint, "unset PYTHONHASHSEED on the node") {
		t.Errorf("hint: %s", hint)
	}
	if hint := (node.Facts{Missing: []string{"python"}}).PythonHint("set python:"); hint != "set python:" {
		t.Errorf("hint without a Python: %s", hint)
	}
}

// refusing is a node whose login shell runs nothing and says so on its standard output.
type refusing struct{}

func (refusing) Run(_ context.Context, cmd remote.Command) error {
	io.WriteString(cmd.Stdout, "welcome\nThis account is currently not available.\n") //nolint:errcheck // of a test
	return &remote.ExitError{Code: 1}
}

// A login shell that refuses is told by its text.
func TestLoginShellThatRefuses(t *testing.T) {
	t.Parallel()
	err := node.Script{Python: "python3", Program: programOf("emit({})\n")}.Run(t.Context(), refusing{}, func(json.RawMessage) error { return nil })
	if want := "node reported: This account is currently not available. (exit status 1)"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
