package deploy_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// Who may read the environment can read DeepSpeed, whatever umask a login has, and nobody else can change it.
func TestModesAreThoseOfTheEnvironment(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{s}, h)
	opt.Force = true
	for _, c := range []struct {
		umask        string
		site, folder fs.FileMode
	}{
		{"077", 0o755, 0o755}, {"000", 0o755, 0o755}, {"000", 0o777, 0o775}, {"022", 0o775 | fs.ModeSetgid, 0o775}, {"022", 0o700, 0o700},
	} {
		if err := os.Chmod(e.site, c.site); err != nil {
			t.Fatal(err)
		}
		opt.Hosts[0].Setup = "umask " + c.umask
		if r := run(t, context.Background(), opt); r.Err() != nil {
			t.Fatal(r.Err())
		}
		for _, top := range []string{"deepspeed", filepath.Base(only(t, e.site, "deepspeed-*.dist-info"))} {
			err := filepath.WalkDir(filepath.Join(e.site, top), func(path string, d fs.DirEntry, err error) error {
				if err != nil {
					return err
				}
				info, err := d.Info()
				want := c.folder
				if err == nil && !d.IsDir() {
					want &= 0o666
				}
				if err == nil && info.Mode().Perm()&0o666 != want&0o666 {
					t.Errorf("umask %s, site-packages %v: %s is %v, want %v", c.umask, c.site, path, info.Mode(), want)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		home, err := os.Stat(e.own())
		if err != nil || home.Mode().Perm() != c.folder {
			t.Errorf("umask %s, site-packages %v: .dsbuild is %v (%v), want %v", c.umask, c.site, home.Mode(), err, c.folder)
		}
	}
}

func TestVerifyTellsModesThatShutOutOrLetIn(t *testing.T) {
	t.Parallel()
	e, opt, _ := withOld(t)
	if err := os.Chmod(e.site, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]fs.FileMode{"deepspeed": 0o700, "deepspeed/__init__.py": 0o666} {
		if err := os.Chmod(filepath.Join(e.site, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	opt.Wheels = nil
	r, err := verify.Run(t.Context(), verifyOptions(opt))
	if err != nil {
		t.Fatal(err)
	}
	told := strings.Join(r.Nodes[0].Notes, "\n")
	for _, want := range []string{"unreadable for other users of this environment: deepspeed; ", "world-writable: deepspeed/__init__.py; "} {
		if !strings.Contains(told, want) {
			t.Errorf("notes %q, want %q", told, want)
		}
	}
}

// asUsers runs lines of Python as root in an environment of user 1001, and returns their output. There deploy(run)
// does to the environment the same as a deploy, and as_user(uid, call) calls a function as another user.
func asUsers(t *testing.T, lines string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to be two users")
	}
	e := newEnvironment(t, "")
	openFolders(t, e)
	return agentDo(t, e, "", `
class Calm:
    def check(self):
        pass

def deploy(run):
    REQUEST["run"] = run
    env = Environment()
    env.begin(Calm())
    env.arrived()
    store_signed(HOME, {"signatures": ["s"]}, run)
    env.start_change([sites()[0] + "/deepspeed"])
    env.change["digests"] = {}
    os.mkdir(sites()[0] + "/deepspeed")
    open(sites()[0] + "/deepspeed/a.py", "w").close()
    env.record({"installed": {"sha256": run}, "journal": {"run": run}, "forget": False})
    env.keep = True
    env.undo()
    assert env.last_run() == run, env.last_run()

def as_user(uid, call):
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(uid)
        os.umask(0o022)
        try:
            call()
        except BaseException as e:
            print("user %d: %r %s" % (uid, e, getattr(e, "filename", "")), flush=True)
            os._exit(1)
        os._exit(0)
    os.waitpid(pid, 0)

for folder, _, _ in os.walk(sys.prefix):
    os.chown(folder, 1001, 65534)
`+lines)
}

// Two administrators of one group change an environment in turn.
func TestSecondAdministratorOfTheGroup(t *testing.T) {
	t.Parallel()
	said := asUsers(t, `
for folder, _, _ in os.walk(sys.prefix):
    os.chmod(folder, 0o2775)
for i, uid in enumerate((1001, 1002, 1001, 1002)):
    as_user(uid, lambda: deploy("run%d" % i))
print(sorted(os.listdir(HOME)))
`)
	// Uploads are private: those of the first user, put aside by the second, go with the first one's next deploy.
	if want := "['foreign-run1', 'foreign-run2', 'inbox', 'installed.json', 'journal.jsonl', 'lock', 'previous', 'run-inbox', 'signed']\n"; said != want {
		t.Errorf("%s, want %s", said, want)
	}
}

// Root changes nothing in an environment that another account could redirect by a link anywhere on its path. A
// link of root's own to a directory of its own is accepted, and stays as it is.
func TestRootFollowsNoLinksOfOthers(t *testing.T) {
	t.Parallel()
	said := asUsers(t, `
import tempfile

def mine():
    for path in [sys.prefix] + [os.path.join(folder, name) for folder, names, _ in os.walk(sys.prefix) for name in names]:
        os.chown(path, 0, 0, follow_symlinks=False)
    if exists(HOME):
        os.unlink(HOME)
    os.symlink(target, HOME)

def look(what):
    try:
        open_as_environment()
        print(what, "accepted")
    except Failed as e:
        print(what, e.advice)
    if os.stat(target).st_mode & 0o7777 != mode or os.stat(target).st_uid != 0 or os.listdir(target) != []:
        print(what, "changed", target)

target, mode = tempfile.mkdtemp(), 0o700
look("all of it")
for what, path in (("packages", sites()[0]), ("environment", sys.prefix), ("above", os.path.dirname(sys.prefix))):
    mine()
    os.chown(path, 1001, 0)
    look(what)
    os.chown(path, 0, 0)
mine()
os.chown(HOME, 1001, 0, follow_symlinks=False)
look("link")
mine()
look("own link")
mode = 0o777
os.chmod(target, mode)
look("link to a directory of all")
os.rmdir(target)
os.unlink(HOME)
open_as_environment()
print("directory", os.path.isdir(HOME))
`)
	want := "all of it not-as-root\npackages not-as-root\nenvironment not-as-root\nabove not-as-root\nlink unsafe-link\n" +
		"own link accepted\nlink to a directory of all unsafe-link\ndirectory True\n"
	if said != want {
		t.Errorf("%s, want %s", said, want)
	}
}

// An administrator writes through no link that another one of the group has put among dsbuild's files.
func TestAdministratorsFollowNoLinks(t *testing.T) {
	t.Parallel()
	said := asUsers(t, `
import tempfile

for folder, _, _ in os.walk(sys.prefix):
    os.chmod(folder, 0o2775)
as_user(1001, lambda: deploy("run0"))
home = tempfile.mkdtemp()
victim = os.path.join(home, "victim")
os.chmod(home, 0o711)
for name in ("lock", "journal.jsonl", "change.json.part", "installed.json.part", "inbox"):
    with open(victim, "w") as f:
        f.write("mine")
    os.chown(victim, 1002, 65534)
    os.chmod(victim, 0o600)
    path = os.path.join(HOME, name)
    aside = path + "+"
    if exists(path):
        os.rename(path, aside)
    os.symlink(victim, path)
    os.chown(path, 1001, 65534, follow_symlinks=False)
    sys.stdout.flush()
    as_user(1002, lambda: deploy("run-" + name))
    if content(victim) != b"mine" or os.stat(victim).st_mode & 0o7777 != 0o600:
        print(name, "was followed:", content(victim))
    remove(path)
    if exists(aside):
        os.rename(aside, path)
shutil.rmtree(home)
`)
	for line := range strings.Lines(said) { // refused is right, too
		if !strings.HasPrefix(line, "user 1002: ") {
			t.Error(line)
		}
	}
}
