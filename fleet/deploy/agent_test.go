package deploy_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/private"
)

// agentDo runs lines of Python among the agent's own functions, in an
// environment, with input as its standard input. It returns what they print.
func agentDo(t *testing.T, e environment, input, lines string) string {
	t.Helper()
	programs, err := filepath.Abs("../node/python")
	if err != nil {
		t.Fatal(err)
	}
	source := "import sys\nsys.path.insert(0, " + strconv.Quote(programs) + ")\nsys.dont_write_bytecode = True\n" + `from dsbuild_node.controller import REQUEST
REQUEST.update({"run": "r", "label": "n", "by": "tester", "at": "2026-01-02T03:04:05Z", "silence_s": 0.5, "lock_s": 0.5, "files": [], "look": False, "safe": ` + strconv.Quote(private.Script()) + `})
from dsbuild_node import changes, deploy
from dsbuild_node.changes import *
from dsbuild_node.deploy import *
`
	program := filepath.Join(t.TempDir(), "agent.py")
	if err := os.WriteFile(program, []byte(source+lines), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(e.python, program)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func TestUnreadableChangeIsNotTakenForNone(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "")
	home := e.own()
	kept := filepath.Join(home, "kept-earlier", "0")
	begin := "env = Environment()\ntry:\n    print(env.begin(Orders()))\nexcept Failed as f:\n    print('failed:', f, '| advice:', f.advice)\n"
	for name, write := range map[string]func(path string) error{
		"torn":       func(path string) error { return os.WriteFile(path, []byte(`{"done": fal`), 0o600) },
		"empty":      func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"null":       func(path string) error { return os.WriteFile(path, []byte("null"), 0o600) },
		"incomplete": func(path string) error { return os.WriteFile(path, []byte(`{"done": false}`), 0o600) },
		"unreadable": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		if err := os.MkdirAll(kept, 0o700); err != nil {
			t.Fatal(err)
		}
		change := filepath.Join(home, "change.json")
		if err := write(change); err != nil {
			t.Fatal(err)
		}
		out := agentDo(t, e, "", begin)
		if !strings.Contains(out, "failed: cannot read "+change+": ") || !strings.Contains(out, "advice: look-at-kept") {
			t.Errorf("%s: %s", name, out)
		}
		if _, err := os.Stat(kept); err != nil {
			t.Errorf("%s: the only copy of the old DeepSpeed is gone: %v", name, err)
		}
		if err := os.RemoveAll(change); err != nil {
			t.Fatal(err)
		}
	}
	if out := agentDo(t, e, "", begin); strings.Contains(out, "failed") {
		t.Error(out)
	}
	if _, err := os.Stat(kept); err == nil {
		t.Error("without a change under way leftovers are not swept")
	}
	if err := os.MkdirAll(filepath.Join(home, "previous", "change.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	if out := agentDo(t, e, "", "try:\n    Environment().roll_back({'accepted': ''})\nexcept Failed as f:\n    print(f)\n"); !strings.Contains(out, "previous/change.json: Not a regular file") {
		t.Errorf("roll back: %s", out)
	}
}

func TestSavedFileAndItsNameReachTheDisk(t *testing.T) {
	t.Parallel()
	out := agentDo(t, newEnvironment(t, ""), "", `
synced, sync = [], os.fsync
os.fsync = lambda fd: synced.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file") or sync(fd)
save_json(os.path.join(sys.prefix, "x.json"), {})
print(synced)
`)
	if strings.TrimSpace(out) != "['file', 'folder']" {
		t.Error(out)
	}
}

func TestLongWorkOnTheNodeIsNotTakenForSilenceOfTheController(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "")
	for _, ask := range []string{"print('next:', orders.take())", "orders.check(); print('next:', orders.take())"} {
		out := agentDo(t, e, `{"do": "ping"}`+"\n"+`{"do": "record", "number": 2}`+"\n", fmt.Sprintf("r, w = os.pipe()\nos.write(w, os.read(0, 65536))\nos.dup2(r, 0)\norders = Orders()\ntime.sleep(1)\n%s\n", ask))
		if !strings.Contains(out, "next: {'do': 'record', 'number': 2}") {
			t.Errorf("%s: %s", ask, out)
		}
	}
	// A controller that says nothing at all is gone.
	out := agentDo(t, e, "", "r, w = os.pipe()\nos.dup2(r, 0)\norders = Orders()\ntime.sleep(1)\ntry:\n    orders.take()\nexcept Gone:\n    print('gone')\n")
	if strings.TrimSpace(out) != "gone" {
		t.Error(out)
	}
}

// Whoever waits for the lock when the controller goes away waits no more.
func TestNobodyWaitsForTheLockInVain(t *testing.T) {
	t.Parallel()
	out := agentDo(t, newEnvironment(t, ""), "", `
REQUEST["lock_s"] = 60
os.makedirs(HOME)
held = os.open(os.path.join(HOME, "lock"), os.O_RDWR | os.O_CREAT)
fcntl.flock(held, fcntl.LOCK_EX)
began = time.monotonic()
main()
print(time.monotonic() - began < 30, os.listdir(HOME))
`)
	if strings.TrimSpace(out) != "True ['lock']" {
		t.Error(out)
	}
}

// A stopped process whose controller is gone is named with its state and how to go on, which works: it ends, and the
// next run gets the lock.
func TestStoppedHolderOfTheLock(t *testing.T) {
	t.Parallel()
	out := agentDo(t, newEnvironment(t, ""), "", `
from dsbuild_node import lock_holder

REQUEST["lock_s"] = 0
os.makedirs(HOME)
r, w = os.pipe()
os.close(w)
os.dup2(r, 0)  # the controller is gone

def waits(env):
    orders = Orders()
    orders.silent = lambda: False
    orders.listen = lambda wait: None
    try:
        env.take_lock(orders)
        print("has the lock")
    except Busy as e:
        print(e, e.detail, e.advice)

pid = os.fork()
if not pid:
    env = Environment()
    env.take_lock(Orders())
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        Orders().take()
    except Gone:
        os._exit(0)
os.waitpid(pid, os.WUNTRACED)
REQUEST["run"] = "another"
waits(Environment())
state, lock_holder.state_of = lock_holder.state_of, lambda pid: "D"
waits(Environment())
lock_holder.state_of = state
os.uname = lambda here=os.uname().nodename: type("uname", (), {"nodename": "not " + here})
lock_holder.holds = lambda pid, lock: False
waits(Environment())
os.kill(pid, signal.SIGCONT)
os.waitpid(pid, 0)
waits(Environment())
print(pid)
`)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	pid := lines[len(lines)-1]
	who := `^another deploy is changing this environment run r by tester on n, pid ` + pid + ` on \S+ since 20\S+Z`
	for i, want := range []string{
		who + `, which is stopped lock-stopped:` + pid + `$`,
		who + `, which waits for a disk or a network file system lock-hung:` + pid + `$`,
		who + ` lock-elsewhere:` + pid + `$`,
		`^has the lock$`,
	} {
		if !regexp.MustCompile(want).MatchString(lines[i]) {
			t.Errorf("line %d: %q, want %s", i, lines[i], want)
		}
	}
}

// The node itself refuses files for which an installer has no folder, also if dsbuild did not.
func TestFilesOfNoInstaller(t *testing.T) {
	t.Parallel()
	said := agentDo(t, newEnvironment(t, ""), "", `
path = os.path.join(sys.prefix, "hjson-3.1.0-py3-none-any.whl")
with zipfile.ZipFile(path, "w") as z:
    z.writestr("hjson-3.1.0.data/SCRIPTS/python", "")
try:
    new_files(path)
except Failed as e:
    print(e)
`)
	if want := "wheel has files for an unknown scheme: 'SCRIPTS'\n"; said != want {
		t.Errorf("%q, want %q", said, want)
	}
}

// A text of JSON with endless levels, or that is none, is not valid, and nothing worse: wherever a program reads one.
func TestDeepJSON(t *testing.T) {
	t.Parallel()
	said := agentDo(t, newEnvironment(t, ""), "", `
from dsbuild_node.files import load_json, read_json
os.makedirs(HOME)
path = os.path.join(HOME, "x.json")
for text in ("[" * 200000, "[" * 200000 + "]" * 200000, '{"a":' * 200000, '{"a":' * 300 + "1" + "}" * 300, "{" + '"a":[' * 500 + "]" * 500 + "}", "", "\xff", "nul", "1" * 100000):
    data = text.encode("latin-1")
    with open(path, "wb") as f:
        f.write(data)
    if load_json(path) is not None:
        print("accepted:", text[:20])
    try:
        read_json(data)
    except ValueError:
        continue
    if not text.isdigit():
        print("read:", text[:20])
assert load_json(path) is None and read_json(b'{"a": [[1, {"b": null}]]}') == {"a": [[1, {"b": None}]]}
for name in ("change.json", "journal.jsonl", "installed.json"):
    with open(os.path.join(HOME, name), "wb") as f:
        f.write(b"[" * 200000 + b"\n")
    try:
        Environment().last_run()
        read_change(CHANGE)
        print(name, "read")
    except Failed as e:
        print(name, e.advice)
os.unlink(path)
os.mkfifo(path)
print(load_json(path))
try:
    read_change(path)
except Failed as e:
    print(e.advice)
`)
	want := "change.json look-at-kept\njournal.jsonl look-at-kept\ninstalled.json look-at-kept\nNone\nlook-at-kept\n"
	if said != want {
		t.Errorf("%s, want %s", said, want)
	}
}
