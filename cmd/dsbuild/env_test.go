//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/internal/testkit/schema"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
	"github.com/dsbuild/dsbuild/wheel"
)

// envSite is a folder with an environment.yaml, an inventory of bare nodes and a home.
type envSite struct {
	*wheelindex.Index
	dir   string
	nodes []*sshtest.Server
}

func newEnvSite(t *testing.T, nodes int, opt sshtest.Options) *envSite {
	t.Helper()
	needs.Time(t)
	s := &envSite{Index: wheelindex.New(t), dir: t.TempDir()}
	s.PublishUV(t, wheel.X86)
	system, err := python.Find(t.Context(), "3.11") // that of a version manager takes four times as long to start
	if err != nil {
		t.Fatal(err)
	}
	opt.Env = append(opt.Env, "PATH="+filepath.Dir(system)+":"+os.Getenv("PATH"))
	text, keys := "known_hosts: known_hosts\nnodes:\n", ""
	for i := range nodes {
		opt.Name = fmt.Sprint("gpu", i+1)
		n := sshtest.Start(t, opt)
		key, err := os.ReadFile(n.KnownHosts)
		if err != nil {
			t.Fatal(err)
		}
		s.nodes, keys = append(s.nodes, n), keys+string(key)
		text += fmt.Sprintf("  - {hosts: %s, address: %s, port: %d, user: %s, identity_file: %s}\n", opt.Name, n.Address, n.Port, n.User, n.IdentityFile)
	}
	for name, text := range map[string]string{"inventory.yaml": text, "known_hosts": keys, "environment.yaml": "name: train\npython: 3.11\nrequirements: [alpha]\n"} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.0"})
	return s
}

// command is dsbuild in the folder of the site.
func (s *envSite) command(t *testing.T, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd, out := exec.CommandContext(t.Context(), self), new(bytes.Buffer)
	cmd.Args, cmd.Dir, cmd.Stdout, cmd.Stderr = append([]string{"dsbuild"}, args...), s.dir, out, t.Output()
	cmd.Env = []string{"HOME=" + s.dir, "PATH=" + filepath.Dir(s.UV) + ":" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "PIP_INDEX_URL=" + s.URL}
	return cmd, out
}

// run runs dsbuild, which must end with an exit code, and returns its output.
func (s *envSite) run(t *testing.T, code int, args ...string) string {
	t.Helper()
	cmd, out := s.command(t, args...)
	if got := exitStatus(cmd.Run()); got != code {
		t.Errorf("%q: exit %d, want %d\n%s", args, got, code, out)
	}
	checkDocument(t, args, out.String())
	return out.String()
}

// envHint is a fault, the command that finds it, and its hint, which the test follows.
type envHint struct {
	does string // a script in the folder of the site, with $ENV, the folder of gpu1's environments
	find string // env verify, deploy or rollback
	hint string
	// after is a script that does what the hint leaves to the user; then the test runs the command of the hint.
	after string
}

// shell runs a script in the folder of the site, in which dsbuild is a command.
func (s *envSite) shell(t *testing.T, script string) {
	t.Helper()
	prepared, out := s.command(t)
	cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", script)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = s.dir, append(prepared.Env, "ENV="+s.place(0)), out, out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// followHints follows the hint of each fault word for word: then both nodes have the environment of the lockfile, and no
// hint has changed a file of gpu2, which is healthy.
func (s *envSite) followHints(t *testing.T, hints ...envHint) {
	t.Helper()
	for _, c := range hints {
		was := s.listing(t, 1)
		s.shell(t, c.does)
		_, hint, _ := strings.Cut(s.run(t, 3, "env", c.find, "inventory.yaml"), "\n  hint: ")
		if hint, _, _ = strings.Cut(hint, "\n"); hint != c.hint {
			t.Errorf("after %s, env %s has the hint %q, want %q", c.does, c.find, hint, c.hint)
		}
		_, command, _ := strings.Cut(hint, ": dsbuild ")
		s.shell(t, c.after+"\ndsbuild "+command)
		if c.find == "deploy" {
			s.run(t, 0, "env", "deploy", "inventory.yaml")
		}
		s.run(t, 0, "env", "verify", "inventory.yaml")
		if s.listing(t, 1) != was {
			t.Errorf("the hint %q changes files of a healthy node", hint)
		}
	}
}

// listing lists the files in the home of a node with their times.
func (s *envSite) listing(t *testing.T, n int) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "find", s.nodes[n].Home, "-printf", "%P %s %T@\n").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// place is the folder of a node's environments.
func (s *envSite) place(n int) string {
	return filepath.Join(s.nodes[n].Home, ".local/share/dsbuild/env/train")
}

func (s *envSite) current(n int) string {
	link, err := os.Readlink(filepath.Join(s.place(n), "current"))
	if err != nil {
		return ""
	}
	return link
}

// gated deploys with a gate that fails, follows its hint, and deploys with a gate that passes. first is the environment
// that both nodes have before.
func (s *envSite) gated(t *testing.T, first string) {
	t.Helper()
	was := s.listing(t, 1)
	deploy := func(code int, gate string, more ...string) string {
		t.Helper()
		return s.run(t, code, append([]string{"env", "deploy", "inventory.yaml", "--serial", "1,100%", "--gate", gate}, more...)...)
	}
	out := deploy(3, `echo "$DSBUILD_GATE_NODES" >&2; exit 7`, "--report", "gate.json")
	for _, want := range []string{
		"gpu2: skipped: gate failed after the first batch (gpu1): exit status 7\n",
		"\ngate failed after the first batch (gpu1): exit status 7\n  hint: fix the cause and rerun, or roll the first batch back: dsbuild env rollback inventory.yaml --run 20",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the report lacks %q:\n%s", want, out)
		}
	}
	r := reportIn(t, s.dir, "gate.json")
	if n := r.Nodes[0]; n.Status != report.OK || !n.Changed || s.current(0) == first || r.Nodes[1].Status != report.Skipped || s.listing(t, 1) != was {
		t.Errorf("the gate failed: %+v; current is %s and %s, before %s", r.Nodes, s.current(0), s.current(1), first)
	}
	_, hint, _ := strings.Cut(r.Gate.Hint, "roll the first batch back: dsbuild ")
	if out := s.run(t, 0, strings.Fields(hint)...); s.current(0) != first || s.listing(t, 1) != was {
		t.Errorf("the hint %q does\n%s", hint, out)
	}
	deploy(0, `test "$DSBUILD_GATE_NODES" = gpu1 && grep -q '"status": "ok"' "$DSBUILD_GATE_REPORT"`)
}

// The whole way: lock, look at the plan, deploy, verify, change, roll back.
func TestEnv(t *testing.T) {
	t.Parallel()
	s := newEnvSite(t, 2, sshtest.Options{})
	if out := s.run(t, 0, "env", "lock", "--for", "inventory.yaml"); !strings.Contains(out, "environment.lock: written") {
		t.Error(out)
	}
	if out := s.run(t, 0, "env", "lock", "--for", "inventory.yaml"); !strings.Contains(out, "environment.lock: unchanged") {
		t.Error(out)
	}
	if out := s.run(t, 0, "env", "deploy", "inventory.yaml", "--dry-run"); !strings.Contains(out, "gpu[1-2]  install") || s.current(0) != "" {
		t.Error(out)
	}
	lock, err := os.ReadFile(filepath.Join(s.dir, "environment.lock"))
	if err != nil {
		t.Fatal(err)
	}
	s.run(t, 0, "env", "lock", "--for", "inventory.yaml", "-o", "other.lock")
	if other, err := os.ReadFile(filepath.Join(s.dir, "other.lock")); err != nil || !bytes.Equal(other, lock) {
		t.Errorf("-o writes another lock: %v\n%s", err, other)
	}
	schema.Check(t, "environment-lock", lock)
	schema.Check(t, "env-plan", []byte(s.run(t, 0, "env", "deploy", "inventory.yaml", "--dry-run", "--json")))
	var r report.Report
	if err := json.Unmarshal([]byte(s.run(t, 0, "env", "deploy", "inventory.yaml", "--json", "--report", "r.json", "--report", "r.html")), &r); err != nil || r.Command != "env deploy" || !r.Consistent || !r.Nodes[0].Changed {
		t.Errorf("%v, %+v", err, r)
	}
	if out := s.run(t, 0, "env", "deploy", "inventory.yaml"); !strings.Contains(out, "ok, unchanged") || !strings.Contains(out, "/dsbuild/env/train/current/bin/python\n") || strings.Contains(out, "has changed") {
		t.Error(out)
	}
	file := filepath.Join(s.dir, "environment.yaml")
	asked, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(asked), "name: train", "name: other", 1)
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil || changed == string(asked) {
		t.Fatal(err, changed)
	}
	cmd, out := s.command(t, "env", "deploy", "inventory.yaml", "--dry-run")
	cmd.Stderr = out
	if err := cmd.Run(); err != nil || !strings.Contains(out.String(), "environment.lock is out of date: environment.yaml has changed") {
		t.Errorf("a changed file without a new lock is not said: %v, %s", err, out)
	}
	if err := os.WriteFile(file, asked, 0o600); err != nil {
		t.Fatal(err)
	}
	if out := s.run(t, 0, "env", "deploy", "inventory.yaml", "--force", "--lock", "other.lock", "--verify", "files"); strings.Contains(out, "unchanged") || !strings.Contains(out, "2 nodes ok") {
		t.Errorf("--force makes nothing anew: %s", out)
	}
	if out := s.run(t, 0, "env", "verify", "inventory.yaml", "--lock", "other.lock", "--verify", "files", "--files", s.Dir, "--timeout", "2m"); !strings.Contains(out, "2 nodes ok, all equal") {
		t.Error(out)
	}
	first := s.current(0)
	s.Add(t, wheelindex.Wheel{Name: "alpha", Version: "2.0"})
	locked := s.run(t, 0, "env", "lock", "--for", "inventory.yaml", "--upgrade", "--json")
	if !strings.Contains(locked, `"changed": true`) {
		t.Error(locked)
	}
	schema.Check(t, "env-lock", []byte(locked))
	s.run(t, 3, "env", "verify", "inventory.yaml")
	s.gated(t, first)
	if s.current(0) == first || s.current(0) == "" || s.current(0) != s.current(1) {
		t.Error(s.current(0))
	}
	s.run(t, 0, "env", "rollback", "inventory.yaml", "--lock", "other.lock", "--limit", "gpu1")
	if s.current(0) != first || s.current(1) == first {
		t.Error(s.current(0), s.current(1))
	}
	var plan envPlan
	if err := json.Unmarshal([]byte(s.run(t, 0, "env", "rollback", "inventory.yaml", "--dry-run", "--json")), &plan); err != nil || plan.Undone == nil ||
		plan.Nodes[0].Action != "leave" || plan.Nodes[1].Action != "rollback" {
		t.Errorf("%v, %+v", err, plan)
	}
	// Hints bring the environment back, on the node that has another one, or a changed file in it.
	second := s.current(1)
	const (
		again    = "dsbuild env deploy inventory.yaml "
		restored = "only the environment before the last deploy is kept; deploy the one you want: " + again + "--limit gpu1"
		relock   = ", and re-lock: dsbuild env lock environment.yaml --for inventory.yaml"
	)
	s.followHints(t,
		envHint{find: "verify", hint: "deploy it: " + again + "--limit gpu1"}, // it was rolled back above
		envHint{does: "rm $ENV/current/lib/python3.11/site-packages/alpha/__init__.py", find: "verify", hint: "recreate it, also after an update of its Python: " + again + "--force --limit gpu1"},
		envHint{does: "rm $ENV/previous/lib/python3.11/site-packages/alpha/__init__.py", find: "rollback", hint: restored},
		envHint{does: "ln -sfn $(readlink $ENV/previous) $ENV/current", find: "rollback", hint: restored},
		envHint{
			does: "echo interpreter: /opt/none/python >> environment.yaml; dsbuild env lock --for inventory.yaml", find: "deploy",
			hint:  "install Python 3.11 on the node, or set interpreter: in environment.yaml to a Python on the node or an archive to bundle" + relock,
			after: "sed -i /interpreter/d environment.yaml",
		},
		envHint{
			does: "echo 'nodes: [{glibc: 2.40}]' >> environment.yaml; dsbuild env lock", find: "deploy",
			hint: "re-lock for all nodes: dsbuild env lock environment.yaml --for inventory.yaml",
		},
		envHint{
			does: "chmod o+w $ENV", find: "deploy",
			hint:  "run chmod go-w on your directories there, or set folder: in environment.yaml to your own directory below directories that only root can change" + relock,
			after: "chmod o-w $ENV",
		},
	)
	if s.current(1) != second || !strings.HasPrefix(s.current(0), second) {
		t.Errorf("current is %s and %s, want %s, the first recreated", s.current(0), s.current(1), second)
	}
	// A package without a wheel for the nodes is named, before any node gets anything.
	s.Add(t, wheelindex.Wheel{Name: "newer", Version: "1", Tag: "cp313-cp313-manylinux_2_17_x86_64"})
	if err := os.WriteFile(filepath.Join(s.dir, "environment.yaml"), []byte("name: train\npython: 3.11\nrequirements: [newer]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run(t, 2, "env", "lock", "--for", "inventory.yaml")
	// A lock with a hash that is not that of its file.
	s.Add(t, wheelindex.Wheel{Name: "alpha", Version: "2.0", Files: map[string]string{"alpha/more.py": ""}})
	s.run(t, 4, "env", "deploy", "inventory.yaml", "--files", s.Dir)
}

// dsbuild is killed at several moments of a deploy. Each time the node has the old environment or
// the new one, whole, and the next run brings the new one to its end.
func TestEnvKilledController(t *testing.T) {
	t.Parallel()
	killController(t, 3)
}

// killController kills dsbuild at so many moments of a deploy.
func killController(t *testing.T, moments int) {
	t.Helper()
	s := newEnvSite(t, 1, sshtest.Options{})
	s.run(t, 0, "env", "lock", "--for", "inventory.yaml")
	s.run(t, 0, "env", "deploy", "inventory.yaml")
	had := "1.0.1"
	s.Add(t, wheelindex.Wheel{Name: "alpha", Version: had})
	s.run(t, 0, "env", "lock", "--for", "inventory.yaml", "--upgrade")
	begin := time.Now()
	s.run(t, 0, "env", "deploy", "inventory.yaml")
	took := time.Since(begin)
	for tries, killed := 0, 0; killed < moments; tries++ {
		if tries == 3*moments { // a deploy that ends before its moment is no try of it
			t.Fatalf("only %d of %d deploys were killed before their end, after parts of the %s that one takes", killed, tries, took)
		}
		old := s.current(0)
		next := fmt.Sprintf("1.%d", tries+1)
		s.Add(t, wheelindex.Wheel{Name: "alpha", Version: next})
		s.run(t, 0, "env", "lock", "--for", "inventory.yaml", "--upgrade")
		cmd, _ := s.command(t, "env", "deploy", "inventory.yaml")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		began, ended := time.Now(), make(chan struct{})
		go func() {
			cmd.Wait() //nolint:errcheck // how it ended is in its state
			close(ended)
		}()
		select {
		case <-ended: // the machine does less beside it than before
			took = time.Since(began)
		case <-time.After(took * time.Duration(killed+1) / time.Duration(moments+1)):
			cmd.Process.Kill() //nolint:errcheck // it may have ended
			<-ended
			killed++
		}
		now := s.current(0)
		python := filepath.Join(s.nodes[0].Home, ".local/share/dsbuild/env/train/current/bin/python")
		out, err := exec.Command(python, "-c", "import alpha; print(alpha.__version__)").CombinedOutput()
		want := had
		if now != old {
			want = next
		}
		if err != nil || string(out) != want+"\n" {
			t.Errorf("try %d: %v, %q, want %q", tries, err, out, want)
		}
		s.run(t, 0, "env", "deploy", "inventory.yaml")
		s.run(t, 0, "env", "verify", "inventory.yaml")
		had = next
	}
}
