package deploy_test

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// program makes a program of shell lines.
func program(t *testing.T, lines string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "python")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+lines), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

// deploysAndVerifies deploys a wheel, deploys it again, and verifies it.
func deploysAndVerifies(t *testing.T, opt deploy.Options) {
	t.Helper()
	for again := range 2 {
		if r := run(t, t.Context(), opt); r.Err() != nil || r.Nodes[0].Changed != (again == 0) {
			t.Fatalf("deploy %d: changed %v, %v", again+1, r.Nodes[0].Changed, r.Err())
		}
		if r, err := verify.Run(t.Context(), verifyOptions(opt)); err != nil || r.Err() != nil {
			t.Fatalf("verify after deploy %d: %v, %+v", again+1, err, r.Nodes[0])
		}
	}
}

// Neither the login's environment nor a program that starts Python changes what a deploy installs, and what verify
// then finds; the program that answers the probe is the one that runs everything else.
func TestPythonRunsClean(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	elsewhere := t.TempDir()
	unclean := map[string]string{
		"PYTHONOPTIMIZE": "2", "PYTHONINSPECT": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": elsewhere,
		"PYTHONWARNINGS": "error", "PYTHONVERBOSE": "1", "PYTHONSAFEPATH": "1", "PYTHONDEVMODE": "1", "PYTHONNODEBUGRANGES": "1",
		"PYTHONIOENCODING": "utf-16", "PYTHONUTF8": "0", "PYTHONMALLOC": "debug", "PYTHONPROFILEIMPORTTIME": "1",
	}
	for name, wrapped := range map[string]bool{"login": false, "wrapper": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnvironment(t, "2.15.0")
			h, s := host(t, "gpu1", e, sshtest.Options{})
			h.Env = maps.Clone(unclean)
			if wrapped {
				// As a module of Lmod: torch is found by PYTHONPATH alone.
				modules := t.TempDir()
				lines := "export PYTHONPATH=" + modules + "\n"
				for name, value := range unclean {
					lines += "export " + name + "=" + value + "\n"
				}
				for _, name := range []string{"torch", "torch-2.15.0.dist-info"} {
					if err := os.Rename(filepath.Join(e.site, name), filepath.Join(modules, name)); err != nil {
						t.Fatal(err)
					}
				}
				h.Env, h.Python = nil, program(t, lines+"exec "+e.python+` -OO -i -v -W error -X pycache_prefix=`+elsewhere+` "$@"`+"\n")
			}
			opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{s}, h)
			deploysAndVerifies(t, opt)
			made, err := filepath.Glob(filepath.Join(e.site, "deepspeed/__pycache__/*.pyc"))
			if err != nil || len(made) == 0 || strings.Contains(strings.Join(made, " "), "opt-") {
				t.Errorf("byte code of DeepSpeed: %q, %v, want that of an unoptimized Python", made, err)
			}
		})
	}
}

// A python: that runs in another file system is refused before anything is sent; one whose environment is the node's
// own, mounted there, is not.
func TestPythonInAnotherFileSystem(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 || exec.CommandContext(t.Context(), "unshare", "-m", "true").Run() != nil {
		needs.Missing(t, "no right to mount")
	}
	e, opt, _ := withOld(t)
	image, root := newEnvironment(t, "2.15.0"), t.TempDir()
	inside := func(lines string) string {
		return program(t, "exec unshare -m sh -c '"+lines+"' sh \"$@\"\n")
	}
	count := &sshtest.CountingDialer{Dialer: opt.Dialer}
	opt.Dialer = count
	was, wasImage := e.snapshot(t), image.snapshot(t)
	for name, lines := range map[string]string{
		"a namespace":                 "mount --bind " + image.dir + " " + e.dir + " && exec " + e.python + ` "$@"`,
		"a root without /proc":        "mount --bind / " + root + " && mount --bind " + image.dir + " " + root + e.dir + " && exec chroot " + root + " " + e.python + ` "$@"`,
		"a runtime that closes files": "mount --bind " + image.dir + " " + e.dir + " && exec " + e.python + ` "$@" 3<&-`,
	} {
		opt.Hosts[0].Python = inside(lines)
		for what, r := range map[string]*report.Report{"deploy": run(t, t.Context(), opt), "rollback": back(t, opt)} {
			n := r.Nodes[0]
			want := []string{opt.Hosts[0].Python + " runs Python in another file system", "its " + e.site + " (sys.prefix " + e.dir + ") is not the node's"}
			if n.Status != report.Refused || !strings.Contains(n.Error, want[0]) || !strings.Contains(n.Error, want[1]) || n.Hint == "" || count.Puts.Load() > 0 {
				t.Errorf("%s in %s: %s %q (hint %q), %d files sent, want it refused with %q", what, name, n.Status, n.Error, n.Hint, count.Puts.Load(), want)
			}
		}
		r, err := verify.Run(t.Context(), verifyOptions(opt))
		if n := r.Nodes[0]; err != nil || !strings.HasPrefix(n.Error, "no DeepSpeed ") || !strings.Contains(n.Hint, "in the node's own file system") {
			t.Errorf("verify in %s: %v, %q (hint %q), want what the image has, and no advice to deploy", name, err, n.Error, n.Hint)
		}
		e.mustBe(t, was)
		image.mustBe(t, wasImage)
	}
	// Here a runtime that closes the files of its caller runs in another root, which has the environment.
	opt.Hosts[0].Python = inside("mount --rbind / " + root + " && exec chroot " + root + " " + e.python + ` "$@" 3<&-`)
	deploysAndVerifies(t, opt)
}

// A command that another Python of the same prefix owns is in the way, and nobody moves it.
func TestCommandsOfAnotherPython(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e, opt, _ := withOld(t)
	count := &sshtest.CountingDialer{Dialer: opt.Dialer}
	opt.Dialer = count
	theirs := filepath.Join(e.dir, "lib/python3.99/site-packages")
	own := func(name, text string, recorded bool) {
		e.write(t, "../../../bin/"+name, text)
		e.write(t, "../../python3.99/site-packages/deepspeed/__init__.py", "")
		sum, row := sha256.Sum256([]byte(text)), "deepspeed/__init__.py,,\n"
		if recorded {
			row += fmt.Sprintf("../../../bin/%s,sha256=%s,%d\n", name, base64.RawURLEncoding.EncodeToString(sum[:]), len(text))
		}
		e.write(t, "../../python3.99/site-packages/deepspeed-0.17.0.dist-info/RECORD", row)
	}
	e.write(t, "../../../bin/python3.99", "#!/bin/sh\n")
	if err := os.Chmod(filepath.Join(e.dir, "bin/python3.99"), 0o755); err != nil {
		t.Fatal(err)
	}
	starts := "#!" + filepath.Join(e.dir, "bin/python3.99") + "\n"
	hint := ""
	for name, c := range map[string]struct {
		text     string
		recorded bool
	}{
		"by its RECORD":     {"#!/bin/sh\n", true},
		"by its first line": {starts, false},
		"by a second line":  {"#!/bin/sh\n'''exec' \"" + filepath.Join(e.dir, "bin/python3.99") + "\" \"$0\" \"$@\"\n' '''\n", false},
		"in two quotes":     {"#!/bin/sh\n'''exec' '" + filepath.Join(e.dir, "bin") + "/'\"python3.99\" \"$0\" \"$@\"\n' '''\n", false},
	} {
		own("ds_report", c.text, c.recorded)
		was := e.snapshot(t)
		n := run(t, t.Context(), opt).Nodes[0]
		if n.Status != report.Refused || !strings.Contains(n.Error, "ds_report belongs to the Python of "+theirs) || count.Puts.Load() > 0 {
			t.Errorf("%s: %s %q, %d files sent", name, n.Status, n.Error, count.Puts.Load())
		}
		hint = n.Hint
		e.mustBe(t, was)
	}

	// What our RECORD lists, too, and is the other Python's stays where it is.
	own("ds_old", starts, true)
	record := only(t, e.site, "deepspeed-*.dist-info/RECORD")
	old, err := os.ReadFile(record)
	err = errors.Join(err, os.Remove(filepath.Join(e.dir, "bin/ds_report")), os.WriteFile(record, append(old, "../../../bin/ds_old,,\n"...), 0o644),
		os.WriteFile(filepath.Join(filepath.Dir(record), "entry_points.txt"), []byte(commands("ds_old")["console"]), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	kept := func(when string, r *report.Report) {
		t.Helper()
		if text, err := os.ReadFile(filepath.Join(e.dir, "bin/ds_old")); r.Err() != nil || err != nil || string(text) != starts {
			t.Errorf("%s: %v; the other Python's command is %q, %v", when, r.Err(), text, err)
		}
	}
	kept("deploy", run(t, t.Context(), opt))
	kept("rollback", back(t, opt))

	// The hint makes an environment of its own, which takes the wheel.
	_, command, _ := strings.Cut(hint, "create one with: ")
	alone := environment{dir: filepath.Join(t.TempDir(), "alone")}
	alone.python = filepath.Join(alone.dir, "bin", "python")
	alone.site = filepath.Join(alone.dir, strings.TrimPrefix(e.site, e.dir))
	lines := strings.Replace(command, "DIR", "--without-pip "+alone.dir, 1) + " && cp -a " + e.site + "/torch* " + e.site + "/einops* " + alone.site
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", lines).CombinedOutput(); err != nil {
		t.Fatalf("hint %q: %v\n%s", hint, err, out)
	}
	opt.Hosts[0].Python = alone.withPip(t, quickPip).python
	if r := run(t, t.Context(), opt); r.Err() != nil {
		t.Error(r.Err())
	}
}
