package deploy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/inventory"
)

// A node with several environments is one connection, and node/env each in the
// report, behind a setup line and a prefix with whatever characters.
func TestSeveralEnvironments(t *testing.T) {
	t.Parallel()
	a, b := newEnvironment(t, "2.15.0"), newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", a, sshtest.Options{})
	prefix := filepath.Join(t.TempDir(), `my "container's" $run`)
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(prefix, []byte("#!/bin/sh\nprintf '%s\\n' \"$1|$SET_BY_SETUP\" >>'"+log+"'\nshift\nexec \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	word := `an 'image' with $HOME and "quotes"`
	train, dev := h, h
	train.Name, dev.Name, dev.Python = "gpu1/train", "gpu1/dev", b.python
	train.Setup = "SET_BY_SETUP='it is \"set\"'; export SET_BY_SETUP # a comment"
	train.ExecPrefix = []string{prefix, word}
	train.Env = map[string]string{"OMP_NUM_THREADS": "8 of 'them'"}
	wheels := load(t, makeWheel(t, t.TempDir(), wheelOptions{}))
	opt := options(t, wheels, []*sshtest.Server{s}, train, dev)
	r := run(t, t.Context(), opt)
	if r.Err() != nil || len(r.Nodes) != 2 {
		t.Fatalf("error %v", r.Err())
	}
	for i, name := range []string{"gpu1/train", "gpu1/dev"} {
		if n := r.Nodes[i]; n.Name != name || n.Status != report.OK || !n.Changed {
			t.Errorf("%s: %+v", name, n)
		}
	}
	if a.version(t) == "" || b.version(t) == "" {
		t.Error("an environment has no DeepSpeed")
	}
	text, err := os.ReadFile(log)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if err != nil || len(lines) < 3 {
		t.Fatalf("%q, %v", lines, err)
	}
	for _, line := range lines {
		if line != word+`|it is "set"` {
			t.Errorf("the prefix was given %q", line)
		}
	}
}

// A setup line that fails is named, with what it said and where it stands.
func TestSetupFails(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	wheels := load(t, makeWheel(t, t.TempDir(), wheelOptions{}))
	for setup, want := range map[string]string{
		"echo 'Lmod: no module \x1b[31mgcc/12' >&2; (exit 3)": `setup line "echo 'Lmod: no module \x1b[31mgcc/12' >&2; (exit 3)" exited with status 3: Lmod: no module gcc/12`,
		"false": `setup line "false" exited with status 1`,
	} {
		h, s := host(t, "gpu1", e, sshtest.Options{})
		h.Setup, h.Position = setup, "inventory.yaml:3:5"
		d := deploy.New(options(t, wheels, []*sshtest.Server{s}, []inventory.Host{h}...))
		plan, err := d.Survey(t.Context())
		d.Close()
		if err != nil {
			t.Fatal(err)
		}
		n := d.Report().Nodes[0]
		if n.Status != report.Failed || n.Step != "probe" || n.Error != want || !strings.HasPrefix(n.Hint, "run the setup line (inventory.yaml:3:5) on gpu1") {
			t.Errorf("%+v\nplan %+v", n, plan)
		}
	}
}
