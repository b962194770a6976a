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
    env.start_change([sites()[0] + "/deepspeed"], "kept-" + run)
    env.change["digests"] = {}
    os.mkdir(sites()[0] + "/deepspeed")
    open(sites()[0] + "/deepspeed/a.py", "w").close()
    env.record({"installed": {"sha256": run}, "journal": {"run": run}, "forget": False})
    env.keep = True
    env.undo()
    give_to_owner([HOME])
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
	if want := "['inbox', 'installed.json', 'journal.jsonl', 'lock', 'previous', 'run-inbox', 'signed']\n"; said != want {
		t.Errorf("%s, want %s", said, want)
	}
}

// The files that root installs belong to the environment's owner. So the owner can deploy and roll back afterwards.
func TestRootInstallsForTheOwner(t *testing.T) {
	t.Parallel()
	said := asUsers(t, `
for i, uid in enumerate((0, 1001, 0, 1001)):
    as_user(uid, lambda: deploy("run%d" % i))
    for folder, folders, files in os.walk(HOME if uid else sites()[0] + "/deepspeed"):
        for path in [folder] + [os.path.join(folder, name) for name in files]:
            if os.stat(path).st_uid != 1001:
                print("after run%d: %s belongs to %d" % (i, path, os.stat(path).st_uid))
`)
	if said != "" {
		t.Errorf("%s, want that all belongs to the owner", said)
	}
}
