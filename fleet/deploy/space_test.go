package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// An environment may lie below a folder with a space in its name, a sign that means
// something to a shell, or a name so long that no kernel runs a script by its first line.
// Its commands run, and a rollback brings the same bytes back.
func TestEnvironmentWithAnOddPath(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	for name, folder := range map[string]string{"a space": "my $HOME's (envs) ü", "long": strings.Repeat("x", 150)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parent := filepath.Join(t.TempDir(), folder)
			if err := os.Mkdir(parent, 0o755); err != nil {
				t.Fatal(err)
			}
			e := newEnvironmentIn(t, parent, "2.15.0")
			h, s := host(t, "gpu1", e, sshtest.Options{})
			old := withFiles(t, makeWheel(t, t.TempDir(), wheelOptions{version: "0.19.7"}), map[string]string{
				"DATA/scripts/ds_shell": "#!/bin/sh\necho report\n",
				"deepspeed/report.py":   "def main():\n    print('report')\n",
				"console":               "[console_scripts]\nds_entry = deepspeed.report:main\n",
			})
			opt := options(t, load(t, old), []*sshtest.Server{s}, h)
			if r := run(t, t.Context(), opt); r.Err() != nil || !r.Nodes[0].Changed {
				t.Fatalf("%v: %+v", r.Err(), r.Nodes[0])
			}
			for _, command := range []string{"ds_report", "ds_entry", "ds_shell"} {
				path := filepath.Join(e.dir, "bin", command)
				if err := os.Chmod(path, 0o755); err != nil { // the test's wheels have no modes
					t.Fatal(err)
				}
				out, err := exec.Command(path).CombinedOutput()
				if err != nil || string(out) != "report\n" {
					t.Errorf("%s: %v, %s", command, err, out)
				}
			}
			if r := look(t, opt, e.dir); r.Err() != nil || len(r.Nodes[0].Notes) > 0 {
				t.Errorf("%v: %q", r.Err(), r.Nodes[0].Notes)
			}
			was := e.snapshot(t)
			opt.Wheels = load(t, makeWheel(t, t.TempDir(), wheelOptions{}))
			if r := run(t, t.Context(), opt); r.Err() != nil {
				t.Fatalf("%v: %+v", r.Err(), r.Nodes[0])
			}
			if r := back(t, opt); r.Err() != nil {
				t.Errorf("%v: %+v", r.Err(), r.Nodes[0])
			}
			e.mustBe(t, was)
		})
	}
}
