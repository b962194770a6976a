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

// holding is a job of a Python that is told by how it holds a path: it has mapped, opened or entered it.
func holding(how, path string, argv ...string) job {
	code := map[string]string{
		"mapped":  "import ctypes\nctypes.CDLL(sys.argv[1])\n",
		"deleted": "import ctypes, os\nctypes.CDLL(sys.argv[1])\nos.unlink(sys.argv[1])\n",
		"opened":  "f = open(sys.argv[1], 'rb')\n",
		"entered": "import os\nos.chdir(sys.argv[1])\n",
		"":        "",
	}[how]
	return job{argv: append(slices.Clone(argv), "-c", "import sys\n"+code+sleeper, path)}
}

// library puts a small shared library at a path.
func library(t *testing.T, path string) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/*/libm.so.6")
	if len(found) == 0 {
		t.Fatal("no libm to copy")
	}
	write(t, path, string(text(t, found[0])))
	return path
}

func text(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// usersOf are the processes that use the environment of a Python.
func usersOf(t *testing.T, python string) (pids []int) {
	t.Helper()
	got, err := node.FindProcesses(t.Context(), local{}, python)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range got.InUse {
		pids = append(pids, p.PID)
	}
	return pids
}

// A process uses an environment if it has mapped or opened its files, whatever it is called and whichever Python it runs.
func TestWhatProcessesHoldDecides(t *testing.T) {
	t.Parallel()
	needRoot(t)
	python, site := venvOf(t, "/usr/bin/python3")
	folder := filepath.Dir(filepath.Dir(python))
	other, otherSite := venvOf(t, "/usr/bin/python3")
	so := library(t, filepath.Join(site, "torch", "lib", "libtorch.so"))
	write(t, filepath.Join(site, "torch", "data.json"), "{}")
	renamed := filepath.Join(t.TempDir(), "engine") // as a program with a Python inside
	if err := os.WriteFile(renamed, text(t, "/usr/bin/python3"), 0o755); err != nil {
		t.Fatal(err)
	}
	trainer := filepath.Join(folder, "bin", "trainer")
	if err := os.Symlink("/usr/bin/python3", trainer); err != nil {
		t.Fatal(err)
	}
	inside := filepath.Join(t.TempDir(), "packages")
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	elsewhere := []string{"unshare", "-m", "sh", "-c", `mount --bind "$1" "$2" && shift 2 && exec "$@"`, "sh", site, inside, other}
	titled := []string{"bash", "-c", `exec -a "ranks: epoch 3" "$@"`, "bash", other}
	nameless := []string{"bash", "-c", `exec -a "" "$@"`, "bash", other}
	sleeps := filepath.Join(t.TempDir(), "monitor")
	if err := os.WriteFile(sleeps, text(t, "/bin/sleep"), 0o755); err != nil {
		t.Fatal(err)
	}
	withHome := holding("mapped", so, renamed)
	withHome.env = []string{"PYTHONHOME=/usr"}
	users := map[string]job{
		"a library by another Python":       holding("mapped", so, other),
		"a library that is gone":            holding("deleted", library(t, filepath.Join(site, "torch", "old.so")), other),
		"a file":                            holding("opened", filepath.Join(site, "torch", "data.json"), other),
		"its folder":                        holding("entered", filepath.Join(site, "torch"), other),
		"a renamed interpreter":             holding("", "", trainer),
		"a program with a Python inside":    withHome,
		"a title":                           holding("mapped", so, titled...),
		"no name":                           holding("mapped", so, nameless...),
		"its folder under another name":     holding("mapped", filepath.Join(inside, "torch", "lib", "libtorch.so"), elsewhere...),
		"a program that is no Python":       {argv: []string{"/bin/sh", "-c", `echo runs; exec "$0" 300`, sleeps}, env: []string{"LD_PRELOAD=" + so}},
		"by a path that is not its own one": holding("mapped", so, "/usr/bin/python3"),
	}
	pids := map[int]string{}
	for name, j := range users {
		pids[start(t, j)] = name
	}
	// These hold files of another environment, or of none.
	start(t, holding("mapped", library(t, filepath.Join(otherSite, "torch", "lib", "libtorch.so")), other))
	start(t, holding("opened", filepath.Join(folder, "pyvenv.cfg"), other))
	start(t, holding("mapped", library(t, filepath.Join(t.TempDir(), "site-packages", "libtorch.so")), renamed))
	for _, pid := range usersOf(t, python) {
		if pids[pid] == "" {
			t.Errorf("pid %d is counted, and holds nothing of the environment", pid)
		}
		delete(pids, pid)
	}
	if len(pids) > 0 {
		t.Errorf("not counted: %v", pids)
	}
}

// An environment that was moved is used by the jobs that began before.
func TestMovedEnvironmentIsUsed(t *testing.T) {
	t.Parallel()
	python, site := venvOf(t, "/usr/bin/python3")
	folder := filepath.Dir(filepath.Dir(python))
	moved := folder + "-moved"
	mapped, unmapped := start(t, holding("mapped", library(t, filepath.Join(site, "lib.so")), python)), start(t, holding("", "", python))
	if err := os.Rename(folder, moved); err != nil {
		t.Fatal(err)
	}
	if got := usersOf(t, filepath.Join(moved, "bin", "python")); !slices.Equal(got, []int{min(mapped, unmapped), max(mapped, unmapped)}) {
		t.Errorf("in use by %v, want %d and %d", got, mapped, unmapped)
	}
}

// A link such as current leads to another environment after a switch. A job that was started through it uses the
// environment whose files it has mapped, and may use any of them if it has mapped none.
func TestLinkIsSwitchedUnderAJob(t *testing.T) {
	t.Parallel()
	old, oldSite := venvOf(t, "/usr/bin/python3")
	place := filepath.Dir(filepath.Dir(filepath.Dir(old)))
	fresh := filepath.Join(place, "fresh", "bin", "python")
	if out, err := exec.Command("/usr/bin/python3", "-m", "venv", "--without-pip", filepath.Join(place, "fresh")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	current := filepath.Join(place, "current")
	point := func(to string) {
		os.Remove(current)
		if err := os.Symlink(to, current); err != nil {
			t.Fatal(err)
		}
	}
	point("venv")
	through := filepath.Join(current, "bin", "python")
	mapped := start(t, holding("mapped", library(t, filepath.Join(oldSite, "lib.so")), through))
	unmapped := start(t, holding("", "", through))
	point("fresh")
	direct := start(t, holding("", "", fresh))
	byCwd := holding("", "", "bin/python")
	byCwd.dir = filepath.Join(place, "fresh")
	direct2 := start(t, byCwd)
	for python, want := range map[string][]int{old: {mapped, unmapped}, fresh: {unmapped, direct, direct2}} {
		slices.Sort(want)
		if got := usersOf(t, python); !slices.Equal(got, want) {
			t.Errorf("%s: in use by %v, want %v (mapped %d, unmapped %d)", python, got, want, mapped, unmapped)
		}
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
	for mount, want := range map[string]string{
		"": "",
		"mount -t proc -o hidepid=2 proc /proc && ": "in_use (processes of other users are hidden: hidepid)",
		"mount -t tmpfs none /proc && ":             "in_use (no /proc)",
	} {
		f := probe(t, local{within: []string{"unshare", "-m", "sh", "-c", mount + nobody, "sh"}}, node.ProbeOptions{Python: python})
		got := ""
		for _, m := range f.Missing {
			if strings.HasPrefix(m, "in_use (") && !strings.HasPrefix(m, "in_use (no permission") {
				got = m
			}
		}
		if got != want {
			t.Errorf("%q: missing %q, want %q", mount, f.Missing, want)
		}
		if f.HomeOwner != "root" {
			t.Errorf("%s belongs to %q, want root", home, f.HomeOwner)
		}
	}
}
