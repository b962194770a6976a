package node_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
)

// job is a process that runs until the test ends.
type job struct {
	argv []string
	env  []string
	dir  string
	uid  uint32
}

// start runs a job and waits until its script says that it runs.
func start(t *testing.T, j job) int {
	t.Helper()
	c := exec.Command(j.argv[0], j.argv[1:]...)
	c.Env, c.Dir = with(j.env...), j.dir
	if j.uid != 0 {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: j.uid, Gid: j.uid}}
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Kill() //nolint:errcheck // it may be gone
		c.Wait()         //nolint:errcheck // killed
	})
	ready := make([]byte, 5)
	if _, err := out.Read(ready); err != nil {
		t.Fatalf("%q did not start: %v", j.argv, err)
	}
	return c.Process.Pid
}

// sleeper is a training script: it says that it runs, and does.
const sleeper = "import time\nprint('runs', flush=True)\ntime.sleep(300)\n"

func needRoot(t *testing.T) {
	t.Helper()
	lacks := "needs root"
	if os.Getuid() == 0 {
		if exec.CommandContext(t.Context(), "unshare", "-m", "true").Run() == nil {
			return
		}
		lacks = "needs the right to mount"
	}
	if os.Getenv("CI") == "true" {
		t.Fatal(lacks)
	}
	t.Skip(lacks)
}

func TestProcessesOfTheEnvironmentAreNamed(t *testing.T) {
	t.Parallel()
	needRoot(t)
	python, site := venvOf(t, "/usr/bin/python3") // one that every user can run
	work := filepath.Join(filepath.Dir(filepath.Dir(python)), "work")
	script := filepath.Join(work, "train.py")
	write(t, script, sleeper)
	write(t, filepath.Join(site, "trainer", "__main__.py"), sleeper)
	for dir := work; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(work, "link")
	if err := os.Symlink(filepath.Dir(filepath.Dir(python)), link); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Dir(python)
	const secret = "--token=s3cret"
	jobs := map[string]job{
		"python " + script:          {argv: []string{python, "-u", "-W", "ignore", script, secret}, env: []string{"SLURM_JOB_ID=4711"}},
		"python train.py":           {argv: []string{"../bin/python", "train.py", secret}, dir: work},
		"python3 -m trainer":        {argv: []string{"sh", "-c", "exec python3 -Im trainer " + secret}, env: []string{"PATH=" + bin + ":/usr/bin:/bin"}},
		"python -c":                 {argv: []string{python, "-uc", "token = 's3cret'\n" + sleeper, secret}},
		"python ./train.py":         {argv: []string{filepath.Join(link, "bin", "python"), "./train.py"}, dir: work, uid: 65534},
		"trainer:":                  titled(python, site, "trainer: epoch 3 "+secret),
		"python " + work + "/job s": {argv: []string{python, work + "/job s"}},
	}
	write(t, filepath.Join(work, "job s"), sleeper)
	pids := map[string]int{}
	for command, j := range jobs {
		pids[command] = start(t, j)
	}
	// None of these is in this environment: another one, the Python below it,
	// and one that is called by the path of this environment in another root.
	other, _ := venv(t)
	start(t, job{argv: []string{other, script}})
	start(t, job{argv: []string{"/usr/bin/python3", script}})
	start(t, job{argv: []string{
		"unshare", "-m", "sh", "-c", `mount --bind "$1" "$2" && exec "$2/bin/python" "$3"`, "sh",
		filepath.Dir(filepath.Dir(other)), filepath.Dir(filepath.Dir(python)), copyOf(t, script),
	}})
	f := probe(t, local{}, node.ProbeOptions{Python: python})
	for _, p := range f.InUse {
		user, in := "root", ""
		if jobs[p.Command].uid != 0 {
			user = "nobody"
		}
		if strings.HasSuffix(p.Command, script) {
			in = "Slurm job 4711"
		}
		if pids[p.Command] != p.PID || p.User != user || p.Job != in {
			t.Errorf("%+v, want pid %d, user %s, job %q", p, pids[p.Command], user, in)
		}
		delete(pids, p.Command)
	}
	if len(pids) > 0 || f.InUseMore != 0 {
		t.Errorf("not found: %v; more: %d", pids, f.InUseMore)
	}
	if all, err := json.Marshal(f); err != nil || strings.Contains(string(all), "s3cret") {
		t.Errorf("%v: a secret word of a command line is in %s", err, all)
	}
}

// Of somebody else's processes the command line can be read, and no more.
func TestProcessesOfOthersAreFoundAsFarAsTheyShow(t *testing.T) {
	t.Parallel()
	needRoot(t)
	python, _ := venvOf(t, "/usr/bin/python3")
	script := filepath.Join(filepath.Dir(filepath.Dir(python)), "train.py")
	write(t, script, sleeper)
	for dir := filepath.Dir(script); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	shown := start(t, job{argv: []string{python, script}})
	start(t, job{argv: []string{"sh", "-c", "exec python " + script}, env: []string{"PATH=" + filepath.Dir(python) + ":/usr/bin:/bin"}})
	nobody := local{within: []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}}
	f := probe(t, nobody, node.ProbeOptions{Python: python})
	if len(f.InUse) != 1 || f.InUse[0].PID != shown || f.InUse[0].User != "root" {
		t.Errorf("in use: %+v, want pid %d", f.InUse, shown)
	}
	unseen := func(m string) bool {
		return strings.HasPrefix(m, "in_use (no permission to inspect ") && strings.HasSuffix(m, " of other users)")
	}
	if !slices.ContainsFunc(f.Missing, unseen) {
		t.Errorf("missing: %q", f.Missing)
	}
}

// titled is a job that gave itself a title, by which it hides what it was called
// by, as setproctitle does: only what it has mapped tells.
func titled(python, site, title string) job {
	code := `import mmap, os, sys, time
f = open(sys.argv[1], "rb")
m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
if sys.argv[2:]:
    print("runs", flush=True)
    time.sleep(300)
os.execv("/bin/bash", ["bash", "-c", 'exec -a "$0" "$@"', "` + title + `", sys._base_executable, "-c", open("` + filepath.Join(site, "hide.py") + `").read(), sys.argv[1], "again"])
`
	if err := os.WriteFile(filepath.Join(site, "hide.py"), []byte(code), 0o644); err != nil {
		panic(err)
	}
	return job{argv: []string{python, filepath.Join(site, "hide.py"), filepath.Join(site, "hide.py")}}
}

// copyOf is a file elsewhere, for a job whose root has other folders.
func copyOf(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), filepath.Base(path))
	write(t, to, string(text))
	return to
}

func TestDsbuildsOwnProcessesDoNotCount(t *testing.T) {
	t.Parallel()
	python, _ := venv(t)
	ctx, cancel := context.WithCancel(context.Background())
	begun, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		s := node.Script{Python: python, Program: programOf(`import subprocess
orphaned = "import os, time\nabove = os.getppid()\nwhile os.getppid() == above: time.sleep(0.1)"
child = subprocess.Popen([sys.executable, "-c", orphaned], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
emit({})
child.wait()
`)}
		s.Run(ctx, local{}, func(json.RawMessage) error { close(begun); return nil }) //nolint:errcheck // killed
	}()
	defer func() { cancel(); <-ended }()
	<-begun
	if f := probe(t, local{}, node.ProbeOptions{Python: python}); len(f.InUse) > 0 {
		t.Errorf("in use: %+v", f.InUse)
	}
}

// Nodes of an inventory may be one machine with one environment: their probes
// start and end while others look.
func TestProbesDoNotSeeEachOther(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	python, _ := venv(t)
	var wait sync.WaitGroup
	for range 6 {
		wait.Go(func() {
			for range 8 {
				f, err := node.Probe(context.Background(), local{}, node.ProbeOptions{Python: python, Files: true})
				if err != nil || len(f.InUse) > 0 || f.InUseMore > 0 {
					t.Errorf("in use: %+v, %v", f.InUse, err)
				}
			}
		})
	}
	wait.Wait()
}

func TestManyProcessesAreCounted(t *testing.T) {
	t.Parallel()
	python, _ := venv(t)
	script := filepath.Join(t.TempDir(), "fork.py")
	write(t, script, "import os, time\nfor _ in range(39):\n    if os.fork() == 0:\n        time.sleep(60)\n        os._exit(0)\n"+strings.Replace(sleeper, "300", "60", 1))
	group := start(t, job{argv: []string{"setsid", python, script}})
	defer syscall.Kill(-group, syscall.SIGKILL) //nolint:errcheck // the children
	f := probe(t, local{}, node.ProbeOptions{Python: python})
	if len(f.InUse) != 32 || f.InUseMore != 8 {
		t.Errorf("%d named, %d more", len(f.InUse), f.InUseMore)
	}
	if !slices.IsSortedFunc(f.InUse, func(a, b node.Process) int { return a.PID - b.PID }) {
		t.Error("they are in no order")
	}
	begin := time.Now()
	users, err := node.FindProcesses(context.Background(), local{}, python)
	if err != nil || len(users.InUse) != 32 || users.More != 8 {
		t.Errorf("%+v, %v after %s", users, err, time.Since(begin))
	}
}

// A node that hides the processes of other users says so: none that is seen does not mean that none is there.
func TestHiddenProcessesAreTold(t *testing.T) {
	t.Parallel()
	needRoot(t)
	python, site := venvOf(t, "/usr/bin/python3")
	home := filepath.Join(site, ".dsbuild")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := site; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	nobody := "exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\""
	for mount, want := range map[string]bool{"": false, "mount -t proc -o hidepid=2 proc /proc && ": true} {
		f := probe(t, local{within: []string{"unshare", "-m", "sh", "-c", mount + nobody, "sh"}}, node.ProbeOptions{Python: python})
		hides := func(m string) bool {
			return strings.HasPrefix(m, "in_use (processes of other users are hidden")
		}
		if slices.ContainsFunc(f.Missing, hides) != want {
			t.Errorf("%q: missing %q, want that processes are hidden: %v", mount, f.Missing, want)
		}
		if f.HomeOwner != "root" {
			t.Errorf("%s belongs to %q, want root", home, f.HomeOwner)
		}
	}
}
