//go:build linux

package deploy_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// messyNode is a node that is not as an administrator would set it up.
type messyNode struct {
	// setup is lines of bash: E is the environment, S its site-packages, PY its Python, H the home; "old" installs DeepSpeed 0.19.7.
	setup  string
	python string // lines of the program that python: names; "" means PY
	login  string // lines of a startup file
	why    string // why a deploy changes nothing; "" if it installs the wheel
	hint   string // a part of the hint
	root   bool   // it needs root
}

// inHands gives the environment to another account, which may reach it.
const inHands = `chown -R daemon: $E; d=$E; while [ $d != / ]; do chmod a+x $d; d=$(dirname $d); done`

// TestMessy deploys to messy nodes: each gets the wheel, and verify and a rollback see a node as any other; or it stays as it is,
// with the reason and a hint. TestFullEnvMessy has more of them.
func TestMessy(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	tryMessy(t, map[string]messyNode{
		"site-packages and bin are links": {setup: `mkdir $H/disk; mv $S $E/bin $H/disk; ln -s $H/disk/site-packages $S; ln -s $H/disk/bin $E/bin; old`},
		"lib is a link":                   {setup: `mv $E/lib $H/lib; ln -s $H/lib $E/lib; old`},
		"absolute names in RECORD":        {setup: `old; sed -i "s|^../../../bin|$E/bin|; s|^deepspeed|$S/deepspeed|" $S/deepspeed-*.dist-info/RECORD`},
		"little memory":                   {login: "ulimit -v 80000"},
		"Python of another account": {
			setup: inHands, python: `exec setpriv --reuid=daemon --regid=daemon --clear-groups $PY "$@"`, root: true,
			why: "runs Python as another account than the login: uid 1", hint: `"sudo"`,
		},
		"a program that closes its input": {python: `exec $PY "$@" </dev/null`, why: "the program of python:", hint: `"python"`},
		"Python is a link to nothing":     {setup: `ln -sf /gone/python3 $E/bin/python`, why: "is a link to /gone/python3, which cannot be run", hint: "recreate the environment"},
		".dsbuild is a file":              {setup: `echo >$S/.dsbuild`, why: ".dsbuild: File exists", hint: "move the existing file aside"},
		"the lock is a folder":            {setup: `mkdir -p $S/.dsbuild/lock`, why: "lock: Is a directory", hint: "move the existing file aside"},
		"no large files":                  {login: "ulimit -f 8", why: "File too large; rolled back", hint: "ulimit -a"},
		"a mount in the package": {
			setup:  `old; cp -a $S/deepspeed/ops $E/work`,
			python: `exec unshare -m sh -c "mount --bind $E/work $E/lib/python*/site-packages/deepspeed/ops && exec \"\$@\"" sh $PY "$@"`, root: true,
			why: "deepspeed/ops is a mount point", hint: "unmount it",
		},
		"no PATH": {login: "export PATH=/nothing", why: "sh: not found", hint: "set PATH"},
		"a command of another package": {
			setup: `echo >$E/bin/ds_report; d=$S/other-1.dist-info; mkdir $d; printf 'Name: other\nVersion: 1\n' >$d/METADATA; echo ../../../bin/ds_report,, >$d/RECORD`,
			why:   "ds_report belongs to other", hint: "uninstall that package",
		},
	})
}

// tryMessy deploys to nodes, each in a test of its own.
func tryMessy(t *testing.T, messy map[string]messyNode) {
	t.Helper()
	wheels, older := load(t, makeWheel(t, t.TempDir(), wheelOptions{})), makeWheel(t, t.TempDir(), wheelOptions{version: "0.19.7"})
	for name, m := range messy {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if m.root && os.Getuid() != 0 {
				needs.Missing(t, "this needs root")
			}
			e, home := newEnvironment(t, "2.15.0"), t.TempDir()
			h, s := host(t, "gpu1", e, sshtest.Options{Home: home, Shell: []string{"bash", "-c", m.login + "\n" + `eval "$1"`, "bash"}})
			cmd := exec.CommandContext(t.Context(), "bash", "-euc", m.setup)
			pip := filepath.Join(quickPip.folder(t), "pip")
			cmd.Env = append(os.Environ(), "E="+e.dir, "S="+e.site, "PY="+e.python, "H="+home, "PIP="+pip, "OLD="+older,
				`BASH_FUNC_old%%=() { $PY $PIP -q install --no-deps --no-index --force-reinstall "$OLD"; }`)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", m.setup, err, out)
			}
			if m.python != "" {
				h.Python = program(t, strings.NewReplacer("$PY", e.python, "$E", e.dir).Replace(m.python)+"\n")
				for dir := h.Python; dir != "/"; dir = filepath.Dir(dir) {
					if st, err := os.Stat(dir); err != nil || os.Chmod(dir, st.Mode()|0o111) != nil && os.Getuid() == 0 {
						t.Fatal(dir, err)
					}
				}
			}
			was, atHome := e.snapshot(t), environment{dir: home}
			wasHome := atHome.snapshot(t)
			defer func() {
				e.mustBe(t, was)
				atHome.mustBe(t, wasHome)
			}()
			opt := options(t, wheels, []*sshtest.Server{s}, h)
			n := run(t, context.Background(), opt).Nodes[0]
			if m.why != "" {
				if n.Status == report.OK || n.Changed || !strings.Contains(n.Error, m.why) || !strings.Contains(n.Hint, m.hint) {
					t.Errorf("%s %q (hint %q), changed %v, want %q (hint %q)", n.Status, n.Error, n.Hint, n.Changed, m.why, m.hint)
				}
				return
			}
			look, err := verify.Run(t.Context(), verifyOptions(opt))
			if err = errors.Join(err, look.Err()); err != nil || n.Status != report.OK || !n.Changed {
				t.Fatalf("deploy: %s %q (hint %q), changed %v; verify: %v", n.Status, n.Error, n.Hint, n.Changed, err)
			}
			if again := run(t, context.Background(), opt).Nodes[0]; again.Status != report.OK || again.Changed {
				t.Errorf("second deploy: %s %q, changed %v", again.Status, again.Error, again.Changed)
			}
			if r := back(t, opt); r.Err() != nil {
				t.Errorf("rollback: %+v", r.Nodes[0])
			}
		})
	}
}
