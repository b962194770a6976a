package deploy_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/inventory"
)

// logOf reads a log, which must be private and clean.
func logOf(t *testing.T, file string) string {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("%s has the mode %s", file, info.Mode())
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(string(text), "\x1b\r\x00\x07") {
		t.Errorf("control characters in %s", file)
	}
	t.Logf("%s:\n%s", file, text)
	return string(text)
}

// inOrder expects words in a text, one after the other.
func inOrder(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		at := strings.Index(text, w)
		if at < 0 {
			t.Errorf("%q is not there, or not there", w)
			continue
		}
		text = text[at+len(w):]
	}
}

func TestLogOfEveryNode(t *testing.T) {
	t.Parallel()
	all, opt := several(t, 2)
	all[1].spoil(t)
	dir := filepath.Join(t.TempDir(), "logs")
	opt.Logs = fleet.Logs{Dir: dir}
	opt.Command = "deploy"
	const secret = `hf_0123'"456`
	all[0].patch(t, "import os, sys\nsys.stderr.write('token ' + os.environ.get('HF_TOKEN', '') + '\\n')\n")
	opt.Hosts[0].Setup = "printf 'welcome\\033[2J\\n'; export OTHER=s3cret-word; echo \"$OTHER\" >&2; echo https://user:password@index.example/simple"
	opt.Hosts[0].Env = map[string]string{"HF_TOKEN": secret, "LD_LIBRARY_PATH": "/opt/cuda/lib64"}
	opt.Hosts[1].Name = "gpu2/train"
	// What is there already is no way into another file.
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, filepath.Join(dir, "gpu1.log")); err != nil {
		t.Fatal(err)
	}
	r := run(t, context.Background(), opt)
	if r.Nodes[0].Status != report.OK || r.Nodes[1].Status != report.Failed {
		t.Fatalf("%+v", r.Summary)
	}
	if text, _ := os.ReadFile(other); string(text) != "mine" {
		t.Errorf("%q", text)
	}
	good, bad := logOf(t, filepath.Join(dir, "gpu1.log")), logOf(t, filepath.Join(dir, "gpu2+train.log"))
	inOrder(t, good, "gpu1: deploy by tester, run 20", "== connect", "done after", "== probe", "run    sh -c [program of ",
		"setup: printf", "OTHER=[…]", "env: HF_TOKEN LD_LIBRARY_PATH", "out    welcome", "https://[login]@index.example", "answer {", "end    done",
		"== put", `request: {"at":`, "put    "+all[0].dir, "== install", `order  {"accepted":{`, `"do":"install"`, "pip    ", "Successfully installed deepspeed-", `answer {"to"`,
		"== verify", "end    done", "== record", "order", "done after", `order  {"do":"end"}`, "end    done")
	if !strings.Contains(good, "err    [OTHER]") || !strings.Contains(good, "err    token [HF_TOKEN]") {
		t.Error("what was said on standard error is missing")
	}
	for _, word := range []string{secret, "hf_0123", "s3cret-word", "password", "import os"} {
		if strings.Contains(good, word) {
			t.Errorf("the log shows %q", word)
		}
	}
	if !regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d\.\d{3}  +== connect$`).MatchString(good) {
		t.Error("no times")
	}
	inOrder(t, bad, "gpu2/train: deploy", "== install", "Successfully installed", "== verify", "failed after", "libcudart.so.13: cannot open shared object file", `order  {"do":"undo"`, "rolled back; DeepSpeed is not installed")
	if n := r.Nodes[1]; n.Log != filepath.Join(dir, "gpu2+train.log") || !strings.Contains(printed(t, r), "\n  log: "+n.Log+"\n") {
		t.Errorf("the report does not name the log: %q", n.Log)
	}
}

// TestLogsOfFailedNodesAreKept: without being asked for, and bounded.
func TestLogsOfFailedNodesAreKept(t *testing.T) {
	t.Parallel()
	all, opt := several(t, 2)
	base := filepath.Join(t.TempDir(), "state", "logs")
	opt.Logs = fleet.Logs{Dir: base, Failed: true}
	// pip fails for a reason that stands above its last lines.
	all[1].patch(t, "import sys\nif any(a.endswith('.whl') for a in sys.argv):\n    print('the real reason \\033[31m')\n    print('ERROR: no')\n    sys.exit(7)\n")
	for i := range 12 {
		if err := os.MkdirAll(filepath.Join(base, fmt.Sprintf("202501%02dT000000-abcdef", i+1)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, kept := range []string{"mine", "20250101T000000-abcdef.txt"} {
		if err := os.WriteFile(filepath.Join(base, kept), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := run(t, context.Background(), opt)
	n := r.Nodes[1]
	if r.Nodes[0].Log != "" || n.Status != report.Failed || filepath.Dir(filepath.Dir(n.Log)) != base {
		t.Fatalf("logs %q and %q", r.Nodes[0].Log, n.Log)
	}
	text := logOf(t, n.Log)
	inOrder(t, text, "== put", "== install", "pip    the real reason", "ERROR: no", "pip exited with status 1: ERROR: no", "rolled back")
	if strings.Contains(n.Error, "real reason") {
		t.Error("this test would not show that the log has more")
	}
	entries, err := os.ReadDir(base)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if len(names) != 12 || names[1] != "20250104T000000-abcdef" || !slices.Contains(names, "mine") || !slices.Contains(names, "20250101T000000-abcdef.txt") {
		t.Errorf("of old runs there is %q", names)
	}
}

// TestNothingFailsForItsLog: a full disk here is no fault of a node.
func TestNothingFailsForItsLog(t *testing.T) {
	t.Parallel()
	_, opt := several(t, 1)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	opt.Logs = fleet.Logs{Dir: filepath.Join(file, "logs")}
	heard := &warnings{Reporter: opt.Reporter}
	opt.Reporter = heard
	if r := run(t, context.Background(), opt); r.Err() != nil || r.Nodes[0].Log != "" {
		t.Errorf("%v, log %q", r.Err(), r.Nodes[0].Log)
	}
	if len(heard.said) != 1 || !strings.Contains(heard.said[0], "cannot write node logs: mkdir") {
		t.Errorf("%q", heard.said)
	}
}

// TestLogOfATalkativeNode: what a node says without end is bounded, its end is
// kept, and so is what became of the node.
func TestLogOfATalkativeNode(t *testing.T) {
	t.Parallel()
	h, s := host(t, "gpu1", environment{}, sshtest.Options{})
	h.Python = "/nowhere/python"
	h.Setup = `i=0; while [ $i -lt 300 ]; do printf '%08192d %s\n' 0 "line $i" >&2; i=$((i+1)); done; echo the end >&2; head -c 3000000 /dev/zero | tr '\0' x; false`
	opt := options(t, nil, []*sshtest.Server{s}, h)
	opt.Logs = fleet.Logs{Dir: t.TempDir()}
	d := deploy.New(opt)
	defer d.Close()
	if _, err := d.SurveyRollback(context.Background(), ""); err != nil {
		t.Fatal(err)
	}
	file := d.Report().Nodes[0].Log
	text := logOf(t, file)
	if len(text) > 1<<20 {
		t.Errorf("%d bytes", len(text))
	}
	inOrder(t, text, "== probe", "[… 1.", "the end", "exited with status 1")
	if !strings.Contains(text, "more bytes]") {
		t.Error("a line without an end was not cut")
	}
}

// TestLogsHaveNamesOfTheirOwn: whatever nodes are called, no two share a file, and
// none lies elsewhere.
func TestLogsHaveNamesOfTheirOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	opt := deploy.Options{Options: fleet.Options{Reporter: &warnings{}, Dialer: deaf{}, Logs: fleet.Logs{Dir: dir}}}
	opt.Reporter = options(t, nil, nil).Reporter
	for _, name := range []string{"gpu1", "GPU1", "gpu1/train", "gpu1_train", "gpu1+train", "..", "../up", "a b", "a\tb", "-rf", strings.Repeat("n", 300), strings.Repeat("n", 301)} {
		opt.Hosts = append(opt.Hosts, inventory.Host{Name: name})
	}
	d := deploy.New(opt)
	if _, err := d.SurveyRollback(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	files := map[string]bool{}
	for _, n := range d.Report().Nodes {
		if text := logOf(t, n.Log); !strings.Contains(text, "i/o timeout") {
			t.Errorf("%s: %s", n.Name, text)
		}
		if filepath.Dir(n.Log) != dir || files[strings.ToLower(n.Log)] {
			t.Errorf("%s: %s", n.Name, n.Log)
		}
		files[strings.ToLower(n.Log)] = true
	}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && path != dir {
			err = fmt.Errorf("a folder %s", path)
		}
		return err
	})
	if err != nil || len(files) != len(opt.Hosts) {
		t.Errorf("%v, %d files", err, len(files))
	}
}

// TestLogOfAVerification: nothing went wrong with asking the node, and yet what it
// said of an operator is worth keeping.
func TestLogOfAVerification(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	byHand(t, e, makeWheel(t, t.TempDir(), wheelOptions{files: map[string]string{
		"deepspeed/ops/cpu_adam_loaded.py": "import sys\nsys.stderr.write('symbol lookup: the long story\\n')\nraise ImportError('undefined symbol')\n",
	}}))
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, nil, []*sshtest.Server{s}, h)
	opt.Logs = fleet.Logs{Dir: t.TempDir(), Failed: true}
	r, err := verify.Run(t.Context(), verifyOptions(opt))
	if err != nil {
		t.Fatal(err)
	}
	n := r.Nodes[0]
	if n.Status != report.Failed || n.Log == "" || strings.Contains(n.Error, "the long story") {
		t.Fatalf("%+v", n)
	}
	// Two streams: which of them the node's line comes by first is not said.
	inOrder(t, logOf(t, n.Log), "== probe", "== verify", "undefined symbol")
	inOrder(t, logOf(t, n.Log), "== probe", "== verify", "symbol lookup: the long story")
}

// deaf are nodes that no connection reaches.
type deaf struct{}

func (deaf) Dial(context.Context, remote.Target) (remote.Conn, error) {
	return nil, fmt.Errorf("%w: dial tcp 10.0.0.1:22: i/o timeout", remote.ErrDial)
}
