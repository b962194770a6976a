package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// venv makes an environment without pip, as uv does, and returns its Python
// and its site-packages.
func venv(t *testing.T) (python, site string) {
	t.Helper()
	return venvOf(t, "python3")
}

func venvOf(t *testing.T, base string) (python, site string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "venv")
	if out, err := exec.Command(base, "-m", "venv", "--without-pip", dir).CombinedOutput(); err != nil {
		t.Fatalf("no Python that makes environments: %v\n%s", err, out)
	}
	sites, _ := filepath.Glob(filepath.Join(dir, "lib", "python3*", "site-packages"))
	if len(sites) != 1 {
		t.Fatal("no site-packages in a new environment")
	}
	return filepath.Join(dir, "bin", "python"), sites[0]
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestProbeReadsTorchAndDistsWithoutImporting(t *testing.T) {
	python, site := venv(t)
	write(t, filepath.Join(site, "torch", "version.py"), "from typing import Optional\n__version__ = '2.15.0+cu132'\ncuda: Optional[str] = '13.2'\n")
	write(t, filepath.Join(site, "torch", "__init__.py"), "raise SystemExit('imported')")
	write(t, filepath.Join(site, "torch-2.15.0.dist-info", "METADATA"), "Metadata-Version: 2.1\nName: torch\nVersion: 2.15.0\n")
	write(t, filepath.Join(site, "Py_Cpuinfo-9.0.dist-info", "METADATA"), "Metadata-Version: 2.1\nName: Py_Cpuinfo\nVersion: 9.0\n")
	f, err := node.Probe(context.Background(), local{noise: "Welcome!\n@@dsbuild-x {}\nno newline"}, node.ProbeOptions{Python: python})
	if err != nil {
		t.Fatal(err)
	}
	if f.Torch != "2.15.0" || f.TorchCUDA != "13.2" {
		t.Errorf("torch %q, cuda %q", f.Torch, f.TorchCUDA)
	}
	if f.Dists["py-cpuinfo"] != "9.0" || f.Dists["torch"] != "2.15.0" {
		t.Errorf("dists: %v", f.Dists)
	}
	if f.SitePackages != site || f.FileSystem == "" || !f.Writable || f.FreeBytes == 0 || f.FreeTmpBytes == 0 {
		t.Errorf("site-packages %q file system %q writable %v free %d %d", f.SitePackages, f.FileSystem, f.Writable, f.FreeBytes, f.FreeTmpBytes)
	}
	if f.ExternallyManaged || f.DeepSpeed != nil || f.Pip != "" || !strings.HasPrefix(f.CPU, "x86-64") || f.Glibc == "" {
		t.Errorf("facts: %+v", f)
	}
	missing := slices.DeleteFunc(f.Missing, func(what string) bool {
		return strings.HasPrefix(what, "in_use (") // without root, other users' processes
	})
	if !slices.Equal(missing, []string{"pip", "cxx11abi", "nccl"}) {
		t.Errorf("missing: %q", f.Missing)
	}
	if _, err := os.Stat(f.Home()); err == nil {
		t.Error("the probe wrote into the environment")
	}
}

func TestProbeOfNodeWithoutPythonStillAnswers(t *testing.T) {
	f, err := node.Probe(context.Background(), local{}, node.ProbeOptions{Python: "/nowhere/bin/python's"})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(f.Missing, "python") || f.CPU == "" || f.Glibc == "" {
		t.Errorf("facts: %+v", f)
	}
}

// counted is a Runner that counts its commands.
type counted struct {
	local
	n int
}

func (c *counted) Run(ctx context.Context, cmd remote.Command) error {
	c.n++
	return c.local.Run(ctx, cmd)
}

func TestProbeIsOneCommand(t *testing.T) {
	python, _ := venv(t)
	env := with("PATH=" + fakeSMI(t, oldSMI) + ":" + os.Getenv("PATH"))
	for _, p := range []string{python, "/nowhere/python", "/bin/true", "/bin/false"} {
		c := &counted{local: local{env: env}}
		if _, err := node.Probe(context.Background(), c, node.ProbeOptions{Python: p, Files: true}); err != nil || c.n != 1 {
			t.Errorf("%s: %d commands, %v", p, c.n, err)
		}
	}
}

// A disk that fails hides the interpreter, and does not show that the node has no DeepSpeed.
func TestProbeOfAFailingDisk(t *testing.T) {
	dir := t.TempDir()
	for said, fails := range map[string]bool{
		"Input/output error": true, "Stale file handle": true, "Transport endpoint is not connected": true,
		"No such file or directory": false, "Permission denied": false, "Too many levels of symbolic links": false,
	} {
		write(t, filepath.Join(dir, "ls"), "#!/bin/sh\necho \"ls: cannot access '$3': "+said+"\" >&2\nexit 2\n")
		if err := os.Chmod(filepath.Join(dir, "ls"), 0o755); err != nil {
			t.Fatal(err)
		}
		runner := local{env: with("PATH=" + dir + ":" + os.Getenv("PATH"))}
		f, err := node.Probe(context.Background(), runner, node.ProbeOptions{Python: "/nowhere/python"})
		if fails && (err == nil || !strings.Contains(err.Error(), said)) || !fails && (err != nil || f.MissingPython() == "") {
			t.Errorf("%s: facts %v, %v; want an error: %t", said, f, err, fails)
		}
	}
}

func TestProbeNamesABrokenPython(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "sitecustomize.py"), "import sys\nsys.modules['zlib'] = None\n")
	for script, want := range map[string]string{
		"echo 'libpython3.11.so.1.0: cannot open shared object file' >&2\nexit 127\n": "libpython3.11.so.1.0: cannot open",
		"PYTHONPATH=" + dir + " exec python3 \"$@\"\n":                                "zlib",
	} {
		broken := filepath.Join(t.TempDir(), "python")
		write(t, broken, "#!/bin/sh\n"+script)
		if err := os.Chmod(broken, 0o755); err != nil {
			t.Fatal(err)
		}
		f := probe(t, local{}, node.ProbeOptions{Python: broken})
		if len(f.Missing) == 0 || !strings.Contains(f.Missing[0], want) {
			t.Errorf("missing: %q, want %q", f.Missing, want)
		}
	}
}

func TestProbeRunsAnErrandOnceTheFactsAreTold(t *testing.T) {
	python, _ := venv(t)
	env := with("PATH=" + fakeSMI(t, "echo 'NVIDIA A100, 8.0, 580.65'") + ":" + os.Getenv("PATH"))
	const answers = `emit({"of": REQUEST["of"], "here": found["prefix"] == sys.prefix})` + "\n"
	for name, c := range map[string]struct {
		python, program string
		told            bool
		undone, missing string
	}{
		"done":           {python, answers, true, "", ""},
		"fails":          {python, answers + "raise ValueError('half way')\n", true, "ValueError: half way", ""},
		"has no Python":  {"/nowhere/python", answers, false, "", "python"},
		"broken Python":  {"/bin/false", answers, false, "", "python (/bin/false"},
		"does not parse": {python, "def\n", false, "SyntaxError", ""},
	} {
		var said []string
		begun := 0
		runner := &counted{local: local{env: env}}
		facts, undone, err := node.ProbeWithFollowUp(context.Background(), runner, c.python, node.FollowUp{
			Program: node.NewFollowUp(programOf(c.program)),
			Request: map[string]string{"of": "it's \"me\""},
			Started: func() { begun++ },
			Each:    func(m json.RawMessage) error { said = append(said, string(m)); return nil },
		})
		if err != nil || runner.n != 1 || len(facts.GPUs) != 1 {
			t.Errorf("%s: %d commands, GPUs %v, %v", name, runner.n, facts.GPUs, err)
		}
		if (begun == 1) != (c.missing == "") {
			t.Errorf("%s: begun %d times", name, begun)
		}
		if told := []string{`{"of":"it's \"me\"","here":true}`}; c.told != slices.Equal(said, told) {
			t.Errorf("%s: said %q", name, said)
		}
		if c.undone == "" && undone != nil || c.undone != "" && (undone == nil || !strings.Contains(undone.Error(), c.undone)) {
			t.Errorf("%s: undone: %v, want %q", name, undone, c.undone)
		}
		if c.missing != "" && (len(facts.Missing) == 0 || !strings.HasPrefix(facts.Missing[0], c.missing)) {
			t.Errorf("%s: missing: %q", name, facts.Missing)
		}
	}
}

func TestProbeReadsGPUs(t *testing.T) {
	bin := t.TempDir()
	smi := filepath.Join(bin, "nvidia-smi")
	write(t, smi, "#!/bin/sh\nprintf 'NVIDIA A100-SXM4-80GB, 8.0, 580.65.06\\nNVIDIA \"X\", Y, [N/A], 580.65.06\\nNVIDIA H200, 9.0, 580.65.06\\n'\n")
	if err := os.Chmod(smi, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := node.Probe(context.Background(), local{env: []string{"PATH=" + bin + ":" + os.Getenv("PATH")}}, node.ProbeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []node.GPU{{Name: "NVIDIA A100-SXM4-80GB", Arch: "8.0"}, {Name: `NVIDIA "X", Y`}, {Name: "NVIDIA H200", Arch: "9.0"}}
	if !slices.Equal(f.GPUs, want) || f.Driver != "580.65.06" {
		t.Errorf("gpus %+v, driver %q", f.GPUs, f.Driver)
	}
}

// answers is a node that prints what a test wants behind the mark it was given.
type answers func(mark string) string

func (a answers) Run(_ context.Context, cmd remote.Command) error {
	for _, word := range cmd.Argv {
		if strings.HasPrefix(word, "@@dsbuild-") {
			_, err := cmd.Stdout.Write([]byte(a(word)))
			return err
		}
	}
	return errors.New("no mark in the command")
}

func TestProbeDistrustsTheNode(t *testing.T) {
	const sh = "machine x86_64\n"
	for name, c := range map[string]struct {
		out  answers
		want string
	}{
		"nothing":       {func(string) string { return "hello\n" }, "no output from the node"},
		"not JSON":      {func(m string) string { return m + "{\n" }, "invalid JSON"},
		"unknown word":  {func(m string) string { return m + "colour red\n" }, "unexpected reply"},
		"unknown field": {func(m string) string { return m + `{"python":{"colour":"red"}}` + "\n" }, "unexpected reply"},
		"many GPUs":     {func(m string) string { return strings.Repeat(m+"gpu A100\n", 600) }, remote.ErrFlood.Error()},
		"wrong type":    {func(m string) string { return m + sh + m + `{"python":{"free_bytes":"many"}}` + "\n" }, "unexpected reply"},
		"endless line":  {func(m string) string { return m + strings.Repeat("x", 5<<20) }, remote.ErrFlood.Error()},
		"endless noise": {func(string) string { return strings.Repeat("x\n", 9<<20) }, remote.ErrFlood.Error()},
	} {
		_, err := node.Probe(context.Background(), c.out, node.ProbeOptions{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
	f, err := node.Probe(context.Background(), answers(func(m string) string {
		return m + sh + m + `{"python":{"python":"3.11.2","site_packages":"/x\u001b[31m\u202e","dists":{"a\u0007":"1"}}}` + "\n"
	}), node.ProbeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if f.SitePackages != "/x" || f.Dists["a"] != "1" {
		t.Errorf("control characters came through: %q %q", f.SitePackages, f.Dists)
	}
}

// What a message says is the same whether there was something to clean in it or not.
func TestDecode(t *testing.T) {
	type said struct {
		Text  string         `json:"text"`
		Count int            `json:"count"`
		More  map[string]any `json:"more"`
	}
	long := strings.Repeat("x", 5000)
	for message, want := range map[string]said{
		`{"text": "a \"b\" \\ \/ c\n", "count": 3}`:               {Text: "a \"b\" \\ / c", Count: 3},
		`{"text": "\u001b[1mbold\u009b", "count": 3.0}`:           {Text: "bold", Count: 3},
		`{"text": "plain", "count": 4.0}`:                         {Text: "plain", Count: 4},
		"{\"text\": \"\u202eleft\", \"more\": {\"a\\u0007\": 1}}": {Text: "left", More: map[string]any{"a": 1.0}},
		`{"text": "` + long + `"}`:                                {Text: long[:4096] + "…"},
		`{"text": "` + long[:4000] + `\u0007"}`:                   {Text: long[:4000]},
	} {
		var got said
		if err := node.Decode(json.RawMessage(message), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%.60s: %+v, %v, want %+v", message, got, err, want)
		}
	}
	// A string is one line, however it is broken, wherever it stands.
	for _, gap := range []string{`\n`, `\t`, `\r`, `\r\n`, `\u000a`, `\u000b`, `\f`, `\u0085`, "\u0085", `\u2028`, "\u2029", `\n \n`} {
		var got said
		message := `{"text": "a` + gap + `b", "more": {"c` + gap + `d": ["e` + gap + `f", {"g": "h` + gap + `i"}]}}`
		if err := node.Decode(json.RawMessage(message), &got); err != nil {
			t.Errorf("%s: %v", message, err)
		}
		if text := fmt.Sprintf("%+v", got); strings.ContainsAny(text, "\n\t\r\v\f\u0085\u2028\u2029") {
			t.Errorf("%s: %q", message, text)
		}
	}
	for _, message := range []string{`{"text": "a"} {"text": "b"}`, `{"text": "a", "unknown": 1}`, `{"text": "a\`, `{"text": "a`, ``, `{"count": 1.5}`} {
		if err := node.Decode(json.RawMessage(message), new(said)); err == nil || !strings.Contains(err.Error(), "from the node: ") {
			t.Errorf("%s: %v", message, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"python":"3.11.2","gpus":[{"name":"\u001b"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var facts node.Facts
		if node.Decode(json.RawMessage(b), &facts) == nil && strings.ContainsAny(facts.Python, "\x1b\x07\r") {
			t.Errorf("control character in %q", facts.Python)
		}
	})
}

func TestScriptTellsWhyItFailed(t *testing.T) {
	s := node.Script{Python: "python3", Program: programOf("emit({'a': REQUEST['n']})\nraise SystemExit('the disk is \\x1b[1mfull')"), Request: map[string]any{"n": "it's \"é\"\n"}}
	var got struct{ A string }
	err := s.Run(context.Background(), local{}, func(m json.RawMessage) error { return json.Unmarshal(m, &got) })
	var exit *remote.ExitError
	if !errors.As(err, &exit) || !strings.Contains(err.Error(), "node reported: the disk is full") {
		t.Errorf("error %v", err)
	}
	if got.A != "it's \"é\"\n" {
		t.Errorf("request arrived as %q", got.A)
	}
}
