//go:build linux

package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
)

// hintCase is a fault of node2, the command that finds it, and its hint, which the test follows.
type hintCase struct {
	does string   // a script on node2, with $VENV, $SITE and $PY
	args []string // verify, deploy or rollback, with the flags of the command line but INVENTORY
	hint string   // an expression for the hint
	// after is a script that puts node2 right where the hint leaves the decision to the user; "": following the hint does.
	after string
}

// TestHintsAreSafe follows the hint of each fault word for word: it cures the node, or says what the user must decide,
// and changes no file of the healthy nodes.
func TestHintsAreSafe(t *testing.T) {
	t.Parallel()
	f := newFaultFleet(t, nodes.Options{Count: 3, QuickPip: true}, 1<<10)
	ground := newHintGround(t, f)
	const deploy = `dsbuild deploy fleet\.yaml --wheel `
	meant := regexp.QuoteMeta(filepath.Join(f.home, "dist", filepath.Base(f.wheels[0].path)))
	edit := "echo >> $SITE/deepspeed/__init__.py"
	newer := "dsbuild deploy fleet.yaml --limit node2 --wheel " + f.wheels[1].path
	wanted := deploy + `WHEEL --limit node2 \(WHEEL: the wheel that these nodes should run\)$`
	for name, c := range map[string]hintCase{
		"edited":               {does: edit, args: []string{"verify"}, hint: deploy + meant + ` --limit node2$`},
		"edited, with --wheel": {does: edit, args: []string{"verify", "--wheel", "dist", "--verify", "files"}, hint: deploy + meant + ` --verify files --limit node2$`},
		"removed":              {does: "rm -r $SITE/deepspeed $SITE/deepspeed-*.dist-info $VENV/bin/ds_report", args: []string{"verify"}, hint: deploy + meant + ` --limit node2$`},
		"another version":      {does: newer, args: []string{"verify"}, hint: deploy + meant + ` --limit node2$`},
		"two of them": {
			does: "cp -r $SITE/deepspeed-0.19.7*.dist-info $SITE/deepspeed-0.19.6.dist-info", args: []string{"verify"},
			hint: "replaces all of them: " + deploy + meant + ` --limit node2$`,
		},
		"file without rights": {
			does: "chmod 000 $SITE/deepspeed/runtime/part1.py", args: []string{"verify"},
			hint: `^run on the node, as the owner of the files: chmod -R u\+rwX,go\+rX \S+/site-packages/deepspeed\*$`,
		},
		"folder without rights": {
			does: "chmod 000 $SITE/deepspeed/runtime", args: []string{"verify"},
			hint: `^run on the node, as the owner of the files: chmod -R `,
		},
		"deploy into a folder without rights": {
			does: "chmod 000 $SITE/deepspeed/runtime", args: []string{"deploy", "--force", "--wheel", f.wheels[0].path, "--limit", "node2"},
			hint: `^run on the node, as the owner of the files: chmod -R `,
		},
		"site-packages not writable": {
			does: "chmod a-w $SITE; rm $SITE/deepspeed/__init__.py", args: []string{"deploy", "--wheel", f.wheels[0].path},
			hint: `^run on the node: chmod u\+w \S+/site-packages$`, after: "dsbuild deploy fleet.yaml --limit node2 --wheel " + f.wheels[0].path,
		},
		"site-packages not readable": {
			does: "chmod a-r $SITE", args: []string{"verify"}, hint: `^run on the node: chmod u\+rwX \S+/site-packages$`,
		},
		"no torch": {
			does: "mv $SITE/torch $VENV/aside", args: []string{"verify"},
			hint: `^set python: in fleet\.yaml to .* \(now \S+/venv/bin/python\); or install torch there`, after: "mv $VENV/aside $SITE/torch",
		},
		"deploy without a requirement": {
			does: "mv $SITE/einops-0.8.0.dist-info $VENV/aside; " + edit, args: []string{"deploy", "--wheel", f.wheels[0].path},
			hint:  `^install them on the node: \S+/venv/bin/python -m pip install 'einops.*'; or from a wheelhouse: ` + deploy + `\S+ --deps bundle --limit node2$`,
			after: "mv $VENV/aside $SITE/einops-0.8.0.dist-info; dsbuild deploy fleet.yaml --limit node2 --wheel " + f.wheels[0].path,
		},
		"rollback of an edited version": {
			does: newer + "; " + edit, args: []string{"rollback"}, hint: `^deploy the DeepSpeed version you want; .*: ` + wanted,
		},
		"rollback to an edited version": {
			does: newer + "; echo >> $(echo $SITE/.dsbuild/previous/*/runtime)/part1.py", args: []string{"rollback"},
			hint: `^deploy the DeepSpeed version you want; .*: ` + wanted,
		},
		"second rollback": {
			does: newer + "; dsbuild rollback fleet.yaml", args: []string{"rollback"}, hint: `; deploy the one you want: ` + wanted,
		},
		"rollback with a torn note": {
			does: newer + "; echo > $SITE/.dsbuild/change.json", args: []string{"rollback"}, // which run was the last is unknown
			hint:  `^nothing was changed; .*; then remove the file, and rerun$`,
			after: "rm $SITE/.dsbuild/change.json; dsbuild rollback fleet.yaml",
		},
		"no Python": {
			does: "mv $VENV/bin/python $VENV/aside", args: []string{"verify"},
			hint: `^set python: in fleet\.yaml to the absolute path of the environment's interpreter \(now \S+/venv/bin/python\)$`, after: "mv $VENV/aside $VENV/bin/python",
		},
	} {
		t.Run(name, func(t *testing.T) { ground.follow(t, c) })
	}
}

// hintGround is a fleet in one folder: an inventory, the wheel that all nodes run, and another one.
type hintGround struct {
	*faultFleet
	healthy []int
}

// newHintGround writes the inventory. A test of root takes the right to pass over permissions from node2.
func newHintGround(t *testing.T, f *faultFleet) hintGround {
	t.Helper()
	text := fmt.Sprintf("known_hosts: %s\ndefaults: {user: %s, port: %d, identity_file: %s}\nnodes:\n", f.KnownHosts, f.User, f.Nodes[0].Port, f.IdentityFile)
	for i, n := range f.Nodes {
		prefix := ""
		if i == 1 && os.Geteuid() == 0 {
			prefix = ", exec_prefix: [setpriv, '--bounding-set=-dac_override,-dac_read_search']"
		}
		text += fmt.Sprintf("  - {hosts: %s, address: %s, python: %s%s}\n", n.Name, n.Address, n.Python, prefix)
	}
	dist := filepath.Join(f.home, "dist")
	for _, err := range []error{os.WriteFile(filepath.Join(f.home, "fleet.yaml"), []byte(text), 0o600), os.Mkdir(dist, 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range f.wheels { // the newer one is what a deploy of dist would install
		data, err := os.ReadFile(w.path)
		if err == nil {
			err = os.WriteFile(filepath.Join(dist, filepath.Base(w.path)), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return hintGround{f, []int{0, 2}}
}

// shell runs a line in the folder of the fleet, in which dsbuild is a command.
func (g hintGround) shell(t *testing.T, line string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
	cmd.Dir = g.home
	cmd.Env = []string{
		"HOME=" + g.home, "PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8",
		"VENV=" + g.venv(1), "SITE=" + g.site(1), "PY=" + g.Nodes[1].Python,
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// follow breaks node2, takes the hint that the command prints, and follows it.
func (g hintGround) follow(t *testing.T, c hintCase) {
	must := func(line string) {
		t.Helper()
		if out, err := g.shell(t, line); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	must(c.does)
	cmd, stdout, stderr := g.command(t, append([]string{c.args[0], "fleet.yaml"}, c.args[1:]...)...)
	code := exitStatus(cmd.Run())
	_, hint, found := strings.Cut(stdout.String(), "\n  hint: ")
	hint, _, _ = strings.Cut(hint, "\n")
	if code != exitNodes || !found || !regexp.MustCompile(c.hint).MatchString(hint) {
		t.Errorf("%q: exit %d, hint %q, want %q\n%s\n%s", c.args, code, hint, c.hint, stdout, stderr)
	}
	was := g.files(t)
	node, onNode := strings.CutPrefix(hint, "run on the node")
	switch at := strings.Index(hint, "dsbuild "); {
	case onNode:
		_, line, _ := strings.Cut(node, ": ")
		must(line)
	case at >= 0 && c.after == "":
		line, _, _ := strings.Cut(hint[at:], " (WHEEL: ")
		must(strings.Replace(line, "--wheel WHEEL", "--wheel "+g.wheels[0].path, 1))
	}
	if c.after != "" {
		must(c.after)
	}
	if now := g.files(t); !maps.Equal(now, was) {
		for path := range now {
			if now[path] != was[path] {
				t.Errorf("the hint changes %s of a healthy node: %s, before %s", path, now[path], was[path])
			}
		}
		t.Errorf("healthy nodes have %d files, before %d", len(now), len(was))
	}
	if out, err := g.shell(t, "dsbuild verify fleet.yaml --limit node2 --verify files --wheel "+g.wheels[0].path); err != nil {
		t.Errorf("after the hint %q: %v\n%s", hint, err, out)
	}
	if has := g.has(t, 1); has != 0 {
		t.Errorf("node2 has %s", g.name(has))
	}
}

// files are the files of the healthy nodes with mode, time and content.
func (g hintGround) files(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, i := range g.healthy {
		err := filepath.WalkDir(g.venv(i), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			data, err := os.ReadFile(path)
			all[path] = fmt.Sprintf("%s %s %x", info.Mode(), info.ModTime(), sha256.Sum256(data))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}
