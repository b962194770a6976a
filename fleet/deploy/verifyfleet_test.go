package deploy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// echoes are many nodes in one: each command is run once, for real, on this
// machine; further nodes get the same answer, with words replaced for those
// that are to differ.
type echoes struct {
	mu       sync.Mutex
	answers  map[string]answer
	replace  map[string]*strings.Replacer // by node
	gone     string                       // a node that cannot be reached
	replaced atomic.Bool                  // something was
}

type answer struct {
	out  []byte
	code int
}

// mark begins the messages of a program; it is another each time.
var mark = regexp.MustCompile(`@@dsbuild-\w{12}`)

func (e *echoes) Dial(_ context.Context, t remote.Target) (remote.Conn, error) {
	if t.Name == e.gone {
		return nil, remote.ErrDial
	}
	return echo{e, t.Name}, nil
}

type echo struct {
	all  *echoes
	name string
}

func (echo) Put(context.Context, remote.Upload) error { return errors.New("verify puts no file") }
func (echo) Close() error                             { return nil }

// Run implements remote.Runner.
func (e echo) Run(ctx context.Context, cmd remote.Command) error {
	var stdin []byte
	if cmd.Stdin != nil {
		var err error
		if stdin, err = io.ReadAll(cmd.Stdin); err != nil {
			return err
		}
	}
	said := []byte(strings.Join(cmd.Argv, "\n") + fmt.Sprint(cmd.Env) + string(stdin))
	a, err := e.all.answer(ctx, string(mark.ReplaceAll(said, nil)), cmd, stdin)
	if err != nil {
		return err
	}
	out := string(mark.ReplaceAll(a.out, mark.Find(said)))
	if r := e.all.replace[e.name]; r != nil {
		said := out
		out = r.Replace(said)
		if out != said {
			e.all.replaced.Store(true)
		}
	}
	if _, err := io.WriteString(cmd.Stdout, out); err != nil {
		return err
	}
	if a.code != 0 {
		return &remote.ExitError{Code: a.code}
	}
	return nil
}

func (e *echoes) answer(ctx context.Context, key string, cmd remote.Command, stdin []byte) (answer, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a, ok := e.answers[key]; ok {
		return a, nil
	}
	c := exec.CommandContext(ctx, cmd.Argv[0], cmd.Argv[1:]...)
	c.Stdin = bytes.NewReader(stdin)
	c.Env = c.Environ()
	for k, v := range cmd.Env {
		c.Env = append(c.Env, k+"="+v)
	}
	out, err := c.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return answer{}, err
	}
	a := answer{out, c.ProcessState.ExitCode()}
	e.answers[key] = a
	return a, nil
}

// many are n nodes, gpu001 and so on, of which some differ.
func many(t *testing.T, n int, e environment, all *echoes) deploy.Options {
	t.Helper()
	all.answers = map[string]answer{}
	opt := deploy.Options{Options: fleet.Options{Dialer: all, Reporter: ui.New(io.Discard, ui.Options{})}, Verify: verify.LevelFiles}
	for i := range n {
		name := fmt.Sprintf("gpu%03d", i+1)
		opt.Hosts = append(opt.Hosts, inventory.Host{Name: name, Node: name, Address: name, Python: e.python})
	}
	return opt
}

// TestVerifyOf800Nodes: the odd ones are found, and what is printed can be read.
func TestVerifyOf800Nodes(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	files := map[string]string{}
	for i := range 1000 { // as many as DeepSpeed has
		files[fmt.Sprintf("deepspeed/some/folder/with/a/module_%03d.py", i)] = fmt.Sprintf("x = %d\n", i)
	}
	byHand(t, e, makeWheel(t, t.TempDir(), wheelOptions{files: files}))
	e.write(t, "deepspeed/ops/notes.txt", "")
	edited := e.twin(t, t.TempDir())
	rewrite(t, edited, "deepspeed/some/folder/with/a/module_013.py", "x = 'another'\n")
	glibc := strings.NewReplacer("2.36", "2.31")
	all := &echoes{gone: "gpu800", replace: map[string]*strings.Replacer{
		"gpu007": strings.NewReplacer("2.15.0", "2.14.0"), "gpu008": strings.NewReplacer("2.15.0", "2.14.0"),
	}}
	for i := range 60 { // every other one
		all.replace[fmt.Sprintf("gpu%03d", 100+2*i)] = glibc
	}
	opt := many(t, 800, e, all)
	opt.Hosts[665].Python = edited.python
	r, err := verify.Run(context.Background(), verifyOptions(opt))
	if err != nil {
		t.Fatal(err)
	}
	out := printed(t, r)
	if r.Summary.OK != 796 || r.Summary.Differs != 3 || r.Summary.Unreachable != 1 {
		t.Errorf("%+v", r.Summary)
	}
	for _, want := range []string{
		"\ngpu[007-008]   ", "\ntorch: 2.15.0 on gpu[001-006,009-799]; 2.14.0 on gpu[007-008]\n", "\nglibc (may differ): 2.36 on 739 nodes; 2.31 on gpu[100,102,104,", ",…] (60 nodes)\n",
		"gpu[007-008] (2 nodes): torch 2.14.0, but 797 of 799 nodes have 2.15.0\n",
		"\ngpu666: deepspeed/some/folder/with/a/module_013.py differs from 798 of 799 nodes with this version, regardless of RECORD\n",
		"\ngpu800: connect: cannot connect\n", "\n796 of 800 nodes ok, 1 unreachable, 3 differ\n",
		"gpu[001-799] (note): deepspeed/ops/notes.txt is in DeepSpeed's directory",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("not said: %q", want)
		}
	}
	for line := range strings.Lines(out) {
		if len(line) > 600 {
			t.Errorf("a line of %d characters: %s", len(line), line)
		}
	}
	if n := strings.Count(out, "\n"); n > 20 {
		t.Errorf("%d lines", n)
	}
	data, err := json.Marshal(r)
	if err != nil || len(data) > 8<<20 {
		t.Errorf("%v: a report of %d bytes", err, len(data))
	}
}

// TestVerifyOfNodesThatAreAllDifferent: what cannot be folded is counted.
func TestVerifyOfNodesThatAreAllDifferent(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	byHand(t, e, makeWheel(t, t.TempDir(), wheelOptions{}))
	all := &echoes{replace: map[string]*strings.Replacer{}}
	opt := many(t, 300, e, all)
	for i, h := range opt.Hosts {
		all.replace[h.Name] = strings.NewReplacer("2.15.0", fmt.Sprintf("2.15.%d", i))
	}
	r, err := verify.Run(context.Background(), verifyOptions(opt))
	if err != nil {
		t.Fatal(err)
	}
	out := printed(t, r)
	if !strings.Contains(out, "\ngpu[001-300] (300 nodes): torch: no majority: 2.15.0 on gpu001, 2.15.1 on gpu002, 2.15.2 on gpu003, 2.15.3 on gpu004, 296 others\n") || strings.Count(out, "torch: 2.15.0 on gpu001") != 1 {
		t.Error(out)
	}
	if slices.ContainsFunc(r.Nodes, func(n report.Node) bool { return n.Status != report.Differs }) {
		t.Errorf("%+v", r.Summary)
	}
}

// TestVerifyOfAHostileNode: what a node says harms nobody else, and ends nothing.
func TestVerifyOfAHostileNode(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	byHand(t, e, makeWheel(t, t.TempDir(), wheelOptions{}))
	for name, c := range map[string]struct{ old, put, want string }{
		"a file of its own":    {`"others":{`, `"others":{"../../../bin/x":"sha256=AAAA ",`, "../../../bin/x is missing"},
		"no hash":              {`"others":{`, `"others":{"../../../bin/x":"sha256=?! 00",`, "../../../bin/x does not match RECORD"},
		"counts without names": {`"litter":{"count":0,"first":[]}`, `"litter":{"count":3,"first":[]}`, "3 files are in DeepSpeed's directory"},
		"less than none":       {`"litter":{"count":0,"first":[]}`, `"litter":{"count":-7,"first":["x"]}`, ""},
		// Where the list was asked for already, and where it was not.
		"a list for all":      {`"files":{}`, `"files":{"deepspeed/x.py":"sha256=AAAA 00"}`, "deepspeed/x.py does not match RECORD"},
		"lines of its own":    {`"version":"0.19.8`, `"note":"","version":"0.19.8`, "unexpected reply"},
		"a verdict":           {`"litter":{"count":0,"first":[]`, `"litter":{"count":1,"first":["x\n2 nodes ok"]`, ""},
		"another's digest":    {`"digest":"`, `"digest":"0`, ""},
		"a manifest of words": {`"manifest":{"name":"`, `"manifest":{"archs":"all","name":"`, ""},
		"a wheel for others":  {`"cuda":"13.2"`, `"cuda":"12.4"`, "is incompatible"},
	} {
		pairs := []string{c.old, c.put}
		if first, ok := strings.CutSuffix(c.put, "}"); ok && c.old == `"files":{}` {
			pairs = append(pairs, `"files":{`, first+",")
		}
		all := &echoes{replace: map[string]*strings.Replacer{"gpu002": strings.NewReplacer(pairs...)}}
		r, err := verify.Run(context.Background(), verifyOptions(many(t, 4, e, all)))
		if err != nil {
			t.Fatal(err)
		}
		for i, n := range r.Nodes {
			if i != 1 && (n.Status != report.OK || len(n.Differs) > 0) {
				t.Errorf("%s: %s %s: %q", name, n.Name, n.Status, n.Differs)
			}
		}
		if n := r.Nodes[1]; !strings.Contains(n.Error+strings.Join(n.Notes, "\n"), c.want) || !all.replaced.Load() {
			t.Errorf("%s: %s %q, notes %q, replaced %v", name, n.Status, n.Error, n.Notes, all.replaced.Load())
		}
		if out := printed(t, r); strings.Contains(out, "\n2 nodes ok") {
			t.Errorf("%s: %s", name, out)
		}
	}
}
