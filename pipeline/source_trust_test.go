package pipeline

import (
	"context"
	"fmt"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// spy is a program that notes under which name it was run.
type spy struct{ dir string }

func newSpy(t *testing.T) spy {
	t.Helper()
	s := spy{t.TempDir()}
	text := fmt.Sprintf("#!/bin/sh\necho ran >> '%s/'\"ran-$(basename \"$0\")\"\ncat\n", s.dir)
	writeTree(t, s.dir, map[string]string{"bin/template": text})
	return s
}

// as is a path at which the program notes name.
func (s spy) as(t *testing.T, path, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "bin/template"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(path, name)
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

// ran are the names under which it was run.
func (s spy) ran(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.dir, "ran-*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// plantSettings writes every setting of git's that names a program into a
// repository's configuration.
func plantSettings(t *testing.T, s spy, gitDir string) {
	t.Helper()
	program := func(name string) string { return s.as(t, filepath.Join(s.dir, "bin"), name) }
	config := "[core]\n"
	for _, key := range []string{"fsmonitor", "sshCommand", "pager", "editor", "askPass", "gitProxy", "alternateRefsCommand"} {
		config += fmt.Sprintf("\t%s = %s\n", key, program("core."+key))
	}
	config += fmt.Sprintf("\thooksPath = %s\n\tuntrackedCache = true\n[include]\n\tpath = included\n", filepath.Join(s.dir, "hooks"))
	for _, direction := range []string{"clean", "smudge", "process"} {
		config += fmt.Sprintf("[filter \"planted-%s\"]\n\t%s = %s\n\trequired = true\n", direction, direction, program("filter."+direction))
	}
	config += fmt.Sprintf("[diff]\n\texternal = %s\n[diff \"planted\"]\n\ttextconv = %s\n\tcommand = %s\n", program("diff.external"), program("textconv"), program("diff.command"))
	config += fmt.Sprintf("[merge \"planted\"]\n\tdriver = %s\n", program("merge.driver"))
	config += fmt.Sprintf("[credential]\n\thelper = !%s\n", program("credential.helper"))
	config += fmt.Sprintf("[uploadpack]\n\tpackObjectsHook = %s\n\tallowFilter = true\n", program("packObjectsHook"))
	config += fmt.Sprintf("[gpg]\n\tprogram = %s\n[log]\n\tshowSignature = true\n", program("gpg"))
	config += "[status]\n\tsubmoduleSummary = true\n[submodule]\n\trecurse = true\n[diff]\n\tsubmodule = diff\n"
	for _, command := range []string{"status", "ls-files", "rev-parse", "archive"} {
		config += fmt.Sprintf("[alias]\n\t%s = !%s\n[pager]\n\t%s = %s\n", command, program("alias"), command, program("pager."+command))
	}
	config += "[protocol \"ext\"]\n\tallow = always\n"
	config += fmt.Sprintf("[remote \"origin\"]\n\turl = ext::%s %%S\n\tpromisor = true\n\tpartialclonefilter = blob:none\n\tuploadpack = %s\n\treceivepack = %s\n\tvcs = %s\n",
		program("promisor"), program("remote.uploadpack"), program("remote.receivepack"), "planted")
	included := fmt.Sprintf("[filter \"included\"]\n\tclean = %s\n[core]\n\tfsmonitor = %s\n", program("included.clean"), program("included.fsmonitor"))
	f, err := os.OpenFile(filepath.Join(gitDir, "config"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(config); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	writeTree(t, gitDir, map[string]string{
		"included":        included,
		"info/attributes": "*.py filter=planted-clean diff=planted merge=planted\n",
	})
	for _, hook := range []string{"post-index-change", "post-checkout", "fsmonitor-watchman", "reference-transaction", "pre-auto-gc", "sendemail-validate"} {
		s.as(t, filepath.Join(gitDir, "hooks"), hook)
		s.as(t, filepath.Join(s.dir, "hooks"), hook)
	}
}

// plantedAttributes names the filters for files of every kind.
const plantedAttributes = "*.txt filter=planted-process\n*.py filter=planted-clean\nbin/* filter=planted-smudge\nop_builder/* filter=included\n*.md diff=planted\n"

// outdate makes git read every file again.
func outdate(t *testing.T, dir string) {
	t.Helper()
	later := time.Now().Add(time.Hour)
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.IsDir() && info.Name() == ".git" {
			return filepath.SkipDir
		}
		if err == nil && info.Mode().IsRegular() {
			err = os.Chtimes(path, later, later)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// plantedCheckout is a checkout whose settings, and those of its submodule, name
// programs wherever git lets them.
func plantedCheckout(t *testing.T, s spy) string {
	t.Helper()
	files := deepspeedFiles()
	files[".gitattributes"] = plantedAttributes
	library := newCheckout(t, map[string]string{"lib.py": "l = 1\n", ".gitattributes": plantedAttributes})
	repo := newCheckout(t, files)
	runGit(t, repo, "submodule", "--quiet", "add", library, "third_party/lib")
	runGit(t, repo, "commit", "-qam", "submodule")
	// A repository that lies in the work tree without being a submodule.
	inner := writeTree(t, filepath.Join(repo, "vendored"), map[string]string{"v.py": "v = 1\n", ".gitattributes": plantedAttributes})
	runGit(t, inner, "init", "-q")
	runGit(t, inner, "add", "-A")
	runGit(t, inner, "commit", "-qm", "vendored")
	for _, gitDir := range []string{".git", ".git/modules/third_party/lib", "vendored/.git"} {
		plantSettings(t, s, filepath.Join(repo, gitDir))
	}
	outdate(t, repo)
	return repo
}

// A checkout is read with none of its settings: nothing that it names is run.
func TestCheckoutsSettingsRunNothing(t *testing.T) {
	s := newSpy(t)
	repo := plantedCheckout(t, s)
	src := mustOpen(t, repo)
	if ran := s.ran(t); len(ran) > 0 {
		t.Errorf("programs of the checkout were run: %v", ran)
	}
	got := packed(t, src)
	if got["third_party/lib/lib.py"] != "l = 1\n" || got["vendored/v.py"] != "v = 1\n" || got["setup.py"] != deepspeedFiles()["setup.py"] {
		t.Errorf("%q", got)
	}
	if src.Commit == "" || !src.Dirty {
		t.Errorf("%+v: vendored is not in the commit", src)
	}
	// The test itself can fail: git alone runs them.
	cmd := exec.Command("git", "-C", repo, "status", "--porcelain")
	_ = cmd.Run() // a planted filter may break it
	if len(s.ran(t)) == 0 {
		t.Error("git itself runs nothing of what was planted: the test proves nothing")
	}
}

// The same for a commit that is fetched from such a repository.
func TestRepositorysSettingsRunNothing(t *testing.T) {
	s := newSpy(t)
	files := deepspeedFiles()
	files[".gitattributes"] = plantedAttributes
	repo := newCheckout(t, files)
	plantSettings(t, s, filepath.Join(repo, ".git"))
	src := mustOpen(t, "git+file://"+repo)
	if ran := s.ran(t); len(ran) > 0 {
		t.Errorf("programs of the repository were run: %v", ran)
	}
	if got := packed(t, src); got["setup.py"] != deepspeedFiles()["setup.py"] {
		t.Errorf("%q", got)
	}
}

// Settings that only name data, or another place, change nothing either.
func TestCheckoutsSettingsLeadNowhere(t *testing.T) {
	elsewhere := newCheckout(t, map[string]string{"private.txt": "private\n"})
	repo := newCheckout(t, deepspeedFiles())
	want := mustOpen(t, repo)
	runGit(t, repo, "config", "core.worktree", elsewhere)
	runGit(t, repo, "config", "core.excludesFile", filepath.Join(elsewhere, "private.txt"))
	runGit(t, repo, "config", "core.bare", "false")
	if s := mustOpen(t, repo); s.SHA256 != want.SHA256 || s.Dirty || s.Commit != want.Commit {
		t.Errorf("%+v, want %+v", s, want)
	}
}

// A user's own filter is not run on a work tree: it may be a program that takes
// its parts from the folder it runs in.
func TestUsersFiltersAreNotRunInACheckout(t *testing.T) {
	s := newSpy(t)
	files := deepspeedFiles()
	files[".gitattributes"] = "*.py filter=mine\n[attr]own filter=mine\n*.txt own\n"
	repo := newCheckout(t, files)
	s.as(t, filepath.Join(repo, "tools"), "strip")
	home := t.TempDir()
	writeTree(t, home, map[string]string{".gitconfig": "[filter \"mine\"]\n\tclean = ./tools/strip\n[core]\n\thooksPath = tools\n\tfsmonitor = ./tools/strip\n"})
	t.Setenv("HOME", home)
	outdate(t, repo)
	mustOpen(t, repo)
	if ran := s.ran(t); len(ran) > 0 {
		t.Errorf("run: %v", ran)
	}
}

// All kinds of checkouts are read as git reads them.
func TestKindsOfCheckouts(t *testing.T) {
	origin := newCheckout(t, deepspeedFiles())
	want := mustOpen(t, origin)
	place := t.TempDir()
	kinds := map[string]func(dir string){
		"packed refs": func(dir string) { runGit(t, ".", "clone", "-q", origin, dir); runGit(t, dir, "pack-refs", "--all") },
		"detached": func(dir string) {
			runGit(t, ".", "clone", "-q", origin, dir)
			runGit(t, dir, "checkout", "-q", "--detach")
		},
		"linked worktree": func(dir string) { runGit(t, origin, "worktree", "add", "-q", "-b", "linked", dir) },
		"shallow":         func(dir string) { runGit(t, ".", "clone", "-q", "--depth=1", "file://"+origin, dir) },
		"shared objects":  func(dir string) { runGit(t, ".", "clone", "-q", "--shared", origin, dir) },
		"separate folder": func(dir string) { runGit(t, ".", "clone", "-q", "--separate-git-dir", dir+".git", origin, dir) },
		"split index": func(dir string) {
			runGit(t, ".", "clone", "-q", origin, dir)
			runGit(t, dir, "update-index", "--split-index")
		},
		"sparse index": func(dir string) {
			runGit(t, ".", "clone", "-q", origin, dir)
			runGit(t, dir, "sparse-checkout", "set", "--cone", "--sparse-index", "deepspeed", "op_builder", "bin")
		},
		"partial clone": func(dir string) {
			runGit(t, origin, "config", "uploadpack.allowFilter", "true")
			runGit(t, ".", "clone", "-q", "--filter=blob:none", "file://"+origin, dir)
		},
		"branch with a slash": func(dir string) { runGit(t, ".", "clone", "-q", origin, dir); runGit(t, dir, "checkout", "-qb", "a/b") },
		"SHA-256": func(dir string) {
			runGit(t, ".", "init", "-q", "--object-format=sha256", writeTree(t, dir, deepspeedFiles()))
			runGit(t, dir, "add", "-A")
			runGit(t, dir, "commit", "-qm", "first")
		},
		"quote\"d \\ folder": func(dir string) { runGit(t, ".", "clone", "-q", origin, dir) },
	}
	for name, make := range kinds {
		dir := filepath.Join(place, name)
		make(dir)
		s := mustOpen(t, dir)
		if s.Commit != runGit(t, dir, "rev-parse", "HEAD") || s.Dirty || s.SHA256 != want.SHA256 {
			t.Errorf("%s: %+v, want sha256 %s", name, s, want.SHA256)
		}
	}
	unborn := writeTree(t, filepath.Join(place, "unborn"), deepspeedFiles())
	runGit(t, unborn, "init", "-q")
	if s := mustOpen(t, unborn); s.Commit != "" || !s.Dirty {
		t.Errorf("unborn: %+v", s)
	}
}

// A repository that belongs to somebody else is read; where git itself refuses,
// dsbuild says why and what serves.
func TestForeignOwner(t *testing.T) {
	if os.Getuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("only root can give files away")
		}
		t.Skip("only root can give files away")
	}
	repo := newCheckout(t, deepspeedFiles())
	want := mustOpen(t, repo)
	if out, err := exec.Command("chown", "-R", "4711", repo).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if s := mustOpen(t, repo); s.SHA256 != want.SHA256 || s.Commit != want.Commit || s.Dirty {
		t.Errorf("%+v, want %+v", s, want)
	}
	refuse(t, "git+file://"+repo, 1, "dubious ownership", "git config --global --add safe.directory "+repo+"/.git")
	// What git says serves.
	t.Setenv("HOME", t.TempDir())
	if out, err := exec.Command("git", "config", "--global", "--add", "safe.directory", repo+"/.git").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if s := mustOpen(t, "git+file://"+repo); s.SHA256 != want.SHA256 {
		t.Errorf("%+v, want %+v", s, want)
	}
}

// gitOverHTTP serves repositories below root to a user with a password.
func gitOverHTTP(t *testing.T, root, user, password string) string {
	t.Helper()
	path, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	backend := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"), Dir: root,
		Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1"},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, ok := r.BasicAuth(); !ok || u != user || p != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		time.Sleep(20 * time.Millisecond) // so that the processes can be looked at
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// watchProcesses looks for a word in the command lines of all processes until
// stop is called, which returns those that had it and how many were seen.
func watchProcesses(t *testing.T, word string) (stop func() (found []string, seen int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	lines, found := map[string]bool{}, []string{}
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, file := range files {
				text, _ := os.ReadFile(file) // it may have ended
				line := strings.ReplaceAll(string(text), "\x00", " ")
				if strings.Contains(line, "git") && !lines[line] {
					lines[line] = true
					if strings.Contains(line, word) {
						found = append(found, line)
					}
				}
			}
		}
	}()
	return func() ([]string, int) { cancel(); <-done; return found, len(lines) }
}

// A password of a URL serves, and no process has it on its command line.
func TestPasswordIsOnNoCommandLine(t *testing.T) {
	repo := newCheckout(t, deepspeedFiles())
	for _, c := range []struct{ user, password, inURL string }{
		{"user", "s3c/ret", "user:s3c%2Fret@"}, {"user", `s3c ret'"\`, "user:s3c%20ret%27%22%5C@"}, {"t0ken-s3c", "", "t0ken-s3c:@"},
	} {
		host := gitOverHTTP(t, filepath.Dir(repo), c.user, c.password)
		stop := watchProcesses(t, "s3c")
		s := mustOpen(t, "git+http://"+c.inURL+host+"/"+filepath.Base(repo))
		found, seen := stop()
		if len(found) > 0 {
			t.Errorf("on a command line: %q", found)
		}
		if seen == 0 {
			t.Error("no process of git was seen: the test proves nothing")
		}
		if want := "git+http://" + host + "/" + filepath.Base(repo); s.Ref != want {
			t.Errorf("%s, want %s", s.Ref, want)
		}
	}
	host := gitOverHTTP(t, filepath.Dir(repo), "user", "right")
	if _, err := open(t, "git+http://user:wrong@"+host+"/"+filepath.Base(repo)); err == nil || strings.Contains(err.Error()+fault.Hint(err), "wrong") {
		t.Errorf("%v", err)
	}
}

// To read sources runs nothing of them.
func TestReadingSourcesRunsNoSetup(t *testing.T) {
	ran := filepath.Join(t.TempDir(), "ran")
	files := deepspeedFiles()
	for _, name := range []string{"setup.py", "op_builder/__init__.py", "deepspeed/__init__.py"} {
		files[name] = fmt.Sprintf("open(%q, 'w')\n", ran)
	}
	for _, dir := range []string{newCheckout(t, files), writeTree(t, t.TempDir(), files)} {
		if len(packed(t, mustOpen(t, dir))) == 0 {
			t.Error("no sources")
		}
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a program of the sources was run")
	}
}
