package pipeline

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

// deepspeedFiles is the smallest tree that is taken for DeepSpeed's.
func deepspeedFiles() map[string]string {
	return map[string]string{
		"setup.py": "print('setup')\n", "version.txt": "0.19.8\n", "op_builder/__init__.py": "",
		"deepspeed/__init__.py": "a = 1\n", "bin/ds": "#!/bin/sh\n", ".gitignore": "build.txt\n*.log\n",
	}
}

// writeTree writes files below dir; those in bin/ can be executed.
func writeTree(t *testing.T, dir string, files map[string]string) string {
	t.Helper()
	for name, text := range files {
		file, mode := filepath.Join(dir, name), os.FileMode(0o644)
		if strings.HasPrefix(name, "bin/") {
			mode = 0o755
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), mode)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// runGit runs git in dir, away from the settings of whoever runs the test.
func runGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// newCheckout is a repository with one commit of files.
func newCheckout(t *testing.T, files map[string]string) string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	dir := writeTree(t, t.TempDir(), files)
	runGit(t, dir, "init", "-q")
	runGit(t, dir, "add", "-A")
	runGit(t, dir, "commit", "-qm", "first")
	return dir
}

// open opens a source in a private directory.
func open(t *testing.T, arg string) (Source, error) {
	t.Helper()
	dir := t.TempDir()
	s, err := OpenSource(context.Background(), arg, dir, os.Environ())
	left, readErr := os.ReadDir(dir)
	if readErr != nil {
		t.Fatal(readErr)
	}
	want := 0
	if s.File != "" {
		want = 1
	}
	if len(left) != want {
		t.Errorf("%s left %v beside the copy %s", arg, left, s.File)
	}
	return s, err
}

func mustOpen(t *testing.T, arg string) Source {
	t.Helper()
	s, err := open(t, arg)
	if err != nil {
		t.Fatalf("%s: %v (hint: %s)", arg, err, fault.Hint(err))
	}
	sum, _, err := wheel.HashFile(s.File)
	if err != nil || sum != s.SHA256 {
		t.Fatalf("%s: sha256 %s of the copy, said to be %s; %v", arg, sum, s.SHA256, err)
	}
	return s
}

// refuse opens a source that cannot be used, and looks for words in the error.
func refuse(t *testing.T, arg string, code int, words ...string) {
	t.Helper()
	_, err := open(t, arg)
	if err == nil || fault.ExitCode(err) != code {
		t.Errorf("%s: %v, want an error with exit code %d", arg, err, code)
		return
	}
	text := err.Error() + "\nhint: " + fault.Hint(err)
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s: %s\nlacks %q", arg, text, w)
		}
	}
}

// packed is what is in a copy: files with content, "-> x" for links, "x " before
// what can be executed, "/" behind folders.
func packed(t *testing.T, s Source) map[string]string {
	t.Helper()
	f, err := os.Open(s.File)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	top := strings.TrimSuffix(filepath.Base(s.File), ".tar.gz") + "/"
	entries := map[string]string{}
	in := tar.NewReader(zip)
	last := ""
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return entries
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		name, inside := strings.CutPrefix(h.Name, top)
		if !inside || h.Uid != 0 || h.Gid != 0 || h.Uname != "" || !h.ModTime.Equal(packTime()) {
			t.Errorf("entry %+v", h)
		}
		if clean := strings.TrimSuffix(name, "/"); clean < last {
			t.Errorf("%s comes after %s", clean, last)
		} else {
			last = clean
		}
		switch {
		case h.Typeflag == tar.TypeSymlink:
			entries[name] = "-> " + h.Linkname
		case h.Mode == 0o755 && h.Typeflag == tar.TypeReg:
			entries[name] = "x " + string(text)
		case h.Typeflag == tar.TypeReg && h.Mode != 0o644:
			t.Errorf("%s has mode %o", name, h.Mode)
		default:
			entries[name] = string(text)
		}
	}
}

func TestReleaseIsOnlyNamed(t *testing.T) {
	for _, version := range []string{"0.19.8", "0.20.0rc1"} {
		s, err := open(t, version)
		if err != nil || s != (Source{Kind: SourceRelease, Ref: version, Version: version}) {
			t.Errorf("%s: %+v, %v", version, s, err)
		}
	}
}

func TestCheckoutIsCopiedAsItIsAndNotTouched(t *testing.T) {
	repo := newCheckout(t, deepspeedFiles())
	clean := mustOpen(t, repo)
	if head := runGit(t, repo, "rev-parse", "HEAD"); clean.Commit != head || clean.Dirty || clean.Kind != SourcePath || clean.Version != "0.19.8" || clean.Ref != filepath.Base(repo) {
		t.Errorf("%+v", clean)
	}
	want := map[string]string{
		"": "", "op_builder/": "", "deepspeed/": "", "bin/": "",
		"setup.py": "print('setup')\n", "version.txt": "0.19.8\n", "op_builder/__init__.py": "",
		"deepspeed/__init__.py": "a = 1\n", "bin/ds": "x #!/bin/sh\n", ".gitignore": "build.txt\n*.log\n",
	}
	if got := packed(t, clean); !maps.Equal(got, want) {
		t.Errorf("%q", got)
	}

	// A used tree: changed, new, ignored, deleted, and what builds leave.
	writeTree(t, repo, map[string]string{
		"deepspeed/__init__.py": "a = 2\n", "deepspeed/new.py": "new\n", "train.log": "ignored\n", "build.txt": "+old",
		"deepspeed/ops/adam/op.so": "old", "deepspeed/git_version_info_installed.py": "old", "build/lib/x.py": "old",
		"deepspeed/__pycache__/x.pyc": "old", "deepspeed.egg-info/PKG-INFO": "old",
	})
	if err := errors.Join(os.Remove(filepath.Join(repo, "bin/ds")), os.Symlink("../setup.py", filepath.Join(repo, "deepspeed/link.py"))); err != nil {
		t.Fatal(err)
	}
	// Times that make git look at every file again, and save what it finds.
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(filepath.Join(repo, "setup.py"), later, later); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, repo)
	dirty := mustOpen(t, repo)
	if !dirty.Dirty || dirty.Commit != clean.Commit || dirty.SHA256 == clean.SHA256 {
		t.Errorf("%+v", dirty)
	}
	if after := snapshot(t, repo); !maps.Equal(before, after) {
		t.Errorf("the checkout was written to:\n%v\n%v", before, after)
	}
	delete(want, "bin/ds")
	delete(want, "bin/")
	want["deepspeed/__init__.py"], want["deepspeed/new.py"], want["deepspeed/link.py"] = "a = 2\n", "new\n", "-> ../setup.py"
	if got := packed(t, dirty); !maps.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// snapshot is every file below dir, those of git too, with size and time.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil {
			files[path] = info.Mode().String() + info.ModTime().String()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// The same contents give the same bytes, from wherever they come.
func TestEqualContentsGiveEqualBytes(t *testing.T) {
	files := deepspeedFiles()
	repo := newCheckout(t, files)
	first := mustOpen(t, repo)
	if again := mustOpen(t, repo); again.SHA256 != first.SHA256 {
		t.Error("a checkout opened twice gives two copies")
	}
	plain := writeTree(t, t.TempDir(), files)
	old := time.Unix(1e9, 0)
	if err := errors.Join(os.Chtimes(filepath.Join(plain, "setup.py"), old, old), os.Chmod(filepath.Join(plain, "setup.py"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for kind, s := range map[string]Source{
		SourcePath: mustOpen(t, plain), SourceGit: mustOpen(t, "git+file://"+repo), SourceSdist: mustOpen(t, sdist(t, files)),
	} {
		if s.Kind != kind || s.SHA256 != first.SHA256 || s.Version != first.Version {
			t.Errorf("%s: %+v", kind, s)
		}
	}
}

func TestDirectoryWithoutGit(t *testing.T) {
	files := deepspeedFiles()
	maps.Copy(files, map[string]string{
		"build/lib/a.py": "", "dist/a.whl": "", "deepspeed.egg-info/PKG-INFO": "", "deepspeed/x.so": "", "deepspeed/__pycache__/a.pyc": "",
		"build.txt": "+x", "env/pyvenv.cfg": "", "env/lib/python/a.py": "", "deepspeed/build/kept.py": "kept",
	})
	// It lies in a repository that knows nothing of it.
	outer := newCheckout(t, map[string]string{".gitignore": "inner/\n", "a": ""})
	s := mustOpen(t, writeTree(t, filepath.Join(outer, "inner"), files))
	if s.Commit != "" || s.Dirty {
		t.Errorf("%+v", s)
	}
	want := []string{
		"", ".gitignore", "bin/", "bin/ds", "deepspeed/", "deepspeed/__init__.py", "deepspeed/build/", "deepspeed/build/kept.py",
		"op_builder/", "op_builder/__init__.py", "setup.py", "version.txt",
	}
	if got := slices.Sorted(maps.Keys(packed(t, s))); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestGitReferences(t *testing.T) {
	repo := newCheckout(t, deepspeedFiles())
	first := runGit(t, repo, "rev-parse", "HEAD")
	runGit(t, repo, "tag", "-a", "v0.19.8", "-m", "annotated")
	runGit(t, repo, "tag", "both")
	writeTree(t, repo, map[string]string{"version.txt": "0.19.9\n"})
	runGit(t, repo, "commit", "-qam", "second")
	second := runGit(t, repo, "rev-parse", "HEAD")
	runGit(t, repo, "branch", "feature/x")
	runGit(t, repo, "branch", "both")
	for ref, want := range map[string]string{
		"": second, "@main": second, "@feature/x": second, "@refs/heads/main": second, "@v0.19.8": first, "@both": first, // a tag goes before a branch
		"@" + first: first,
	} {
		arg := "git+file://" + repo + ref
		s := mustOpen(t, arg)
		version := map[string]string{first: "0.19.8", second: "0.19.9"}[want]
		if s.Kind != SourceGit || s.Commit != want || s.Ref != arg || s.Version != version || s.Dirty {
			t.Errorf("%s: %+v", ref, s)
		}
	}
	url := "git+file://" + repo
	refuse(t, url+"@v0.19.9", 2, "no tag, branch or commit v0.19.9", "list them: git ls-remote file://"+repo)
	refuse(t, url+"@"+strings.Repeat("ab", 20), 2, "no tag, branch or commit abab")
	refuse(t, url+"@"+first[:8], 2, "no tag, branch or commit "+first[:8], "a commit must be the full hash")
	refuse(t, url+"-not", 1, "cannot read the repository", "git ls-remote file://"+repo+"-not")
}

func TestGitArchiveDoesNotHangOnTheUsersSettings(t *testing.T) {
	repo := newCheckout(t, deepspeedFiles())
	want := mustOpen(t, "git+file://"+repo)
	home := t.TempDir()
	settings := "[core]\n\tautocrlf = true\n\teol = crlf\n[tar]\n\tumask = 077\n[url \"file://" + repo + "\"]\n\tinsteadOf = https://git.example/repo\n"
	writeTree(t, home, map[string]string{".gitconfig": settings})
	t.Setenv("HOME", home)
	t.Setenv("GIT_DIR", "/nowhere") // as in a hook
	// A stand-in for the real host, as the user's own settings allow it.
	if s := mustOpen(t, "git+https://git.example/repo"); s.SHA256 != want.SHA256 || s.Ref != "git+https://git.example/repo" {
		t.Errorf("%+v, want sha256 %s", s, want.SHA256)
	}
}

// Attributes that a commit brings change no byte of its copy, and leave nothing out.
func TestAttributesOfACommitChangeNothing(t *testing.T) {
	files := deepspeedFiles()
	files[".gitattributes"] = "deepspeed/* export-subst ident\nbin/* export-ignore\nsetup.py text eol=crlf\n"
	files["deepspeed/version.py"] = "commit = '$Format:%H$' # $Id$\n"
	repo := newCheckout(t, files)
	got := packed(t, mustOpen(t, "git+file://"+repo))
	for name, text := range files {
		if strings.HasPrefix(name, "bin/") {
			text = "x " + text
		}
		if got[name] != text {
			t.Errorf("%s has %q, want the %q of the commit", name, got[name], text)
		}
	}
}

// If git fails while its output is read, git says why, not the reader.
func TestErrorOfGitIsShown(t *testing.T) {
	dir := newCheckout(t, deepspeedFiles())
	err := repository{dir, gitEnv(os.Environ(), noVariables)}.pipeGit(t.Context(), func(out io.Reader) error {
		_, _ = io.Copy(io.Discard, out)
		return errors.New("not a readable tar")
	}, "archive", "nowhere")
	if err == nil || !strings.Contains(err.Error(), "git archive: not a valid object name: nowhere") {
		t.Errorf("%v, want the error of git", err)
	}
	err = repository{dir, gitEnv(os.Environ(), noVariables)}.pipeGit(t.Context(), func(io.Reader) error { return errors.New("a device in it") }, "archive", "HEAD")
	if err == nil || err.Error() != "a device in it" {
		t.Errorf("%v, want the error of the reader", err)
	}
}

// A tracked file may be replaced by a folder: the folder's files are sources, and no submodule is missing.
func TestFileBecameAFolder(t *testing.T) {
	repo := newCheckout(t, deepspeedFiles())
	writeTree(t, repo, map[string]string{"notes": "text\n"})
	runGit(t, repo, "add", "notes")
	runGit(t, repo, "commit", "-qm", "notes")
	if err := os.Remove(filepath.Join(repo, "notes")); err != nil {
		t.Fatal(err)
	}
	writeTree(t, repo, map[string]string{"notes/one.txt": "one\n"})
	s := mustOpen(t, repo)
	if got := packed(t, s); got["notes/one.txt"] != "one\n" || !s.Dirty {
		t.Errorf("%q, %+v", got, s)
	}
}

// A tracked file may be replaced by a pipe, which nobody writes to: it is refused, and not read.
func TestFileBecameAPipe(t *testing.T) {
	repo := newCheckout(t, deepspeedFiles())
	pipe := filepath.Join(repo, "deepspeed/__init__.py")
	if err := errors.Join(os.Remove(pipe), exec.Command("mkfifo", pipe).Run()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := open(t, repo)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil || fault.ExitCode(err) != fault.Usage || !strings.Contains(err.Error(), "deepspeed/__init__.py: neither a file nor a link") {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("it waits for the pipe")
		if f, err := os.OpenFile(pipe, os.O_RDWR, 0); err == nil { // which ends the wait
			f.Close()
		}
		<-ended
	}
}

func TestSubmodules(t *testing.T) {
	library := newCheckout(t, map[string]string{"lib.h": "h\n", ".gitignore": "*.o\n"})
	repo := newCheckout(t, deepspeedFiles())
	runGit(t, repo, "submodule", "--quiet", "add", library, "third_party/lib")
	runGit(t, repo, "commit", "-qam", "submodule")
	writeTree(t, filepath.Join(repo, "third_party/lib"), map[string]string{"new.h": "n\n", "x.o": "ignored"})
	s := mustOpen(t, repo)
	got := packed(t, s)
	if got["third_party/lib/lib.h"] != "h\n" || got["third_party/lib/new.h"] != "n\n" || len(got) != len(deepspeedFiles())+10 || !s.Dirty {
		t.Errorf("%q, %+v", got, s)
	}
	refuse(t, "git+file://"+repo, 2, "third_party/lib is a submodule", "--recurse-submodules")
	bare := filepath.Join(t.TempDir(), "clone")
	runGit(t, ".", "clone", "-q", repo, bare)
	refuse(t, bare, 2, "submodule third_party/lib is not checked out", "git submodule update --init")
}

func TestNotDeepSpeed(t *testing.T) {
	for missing, words := range map[string][]string{
		"setup.py": {"missing setup.py"}, "op_builder/__init__.py": {"missing op_builder/"}, "version.txt": {"missing version.txt"},
	} {
		files := deepspeedFiles()
		delete(files, missing)
		refuse(t, writeTree(t, t.TempDir(), files), 2, append(words, "not DeepSpeed's sources", "hint: specify the top directory of a checkout")...)
	}
	refuse(t, t.TempDir(), 2, "missing setup.py, op_builder/, version.txt")
	for _, version := range []string{"", "latest", "0.19.8; rm -rf /", strings.Repeat("1.", 60) + "1"} {
		files := deepspeedFiles()
		files["version.txt"] = version
		refuse(t, writeTree(t, t.TempDir(), files), 2, "version.txt", "is not a version")
	}
	refuse(t, "0.19.8.tar", 2, "not a release", "git+URL@REF")
	refuse(t, "https://git.example/x", 2, "git+URL@REF")
	refuse(t, os.DevNull, 2, "neither a file nor a directory")
}

func TestVersionOfPKGINFO(t *testing.T) {
	files := deepspeedFiles()
	delete(files, "version.txt")
	files["PKG-INFO"] = "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.19.7+abc\n\ntext\n"
	if s := mustOpen(t, sdist(t, files)); s.Version != "0.19.7" || s.Kind != SourceSdist || s.Ref != "deepspeed-0.19.8.tar.gz" {
		t.Errorf("%+v", s)
	}
}

func TestLinksStayWithin(t *testing.T) {
	for to, fine := range map[string]bool{
		"../setup.py": true, "nowhere": true, "../..": false, "../../../etc/passwd": false, "/etc/passwd": false, "../deepspeed/link": false,
	} {
		dir := writeTree(t, t.TempDir(), deepspeedFiles())
		if err := os.Symlink(to, filepath.Join(dir, "deepspeed/link")); err != nil {
			t.Fatal(err)
		}
		if !fine {
			refuse(t, dir, 2, "deepspeed/link links to "+to)
		} else if got := packed(t, mustOpen(t, dir)); got["deepspeed/link"] != "-> "+to {
			t.Errorf("%s: %q", to, got)
		}
	}
	dir := writeTree(t, t.TempDir(), deepspeedFiles())
	if err := exec.Command("mkfifo", filepath.Join(dir, "pipe")).Run(); err != nil {
		t.Fatal(err)
	}
	refuse(t, dir, 2, "pipe: neither a file nor a link")
}

func TestInterruptedSource(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("interrupted")
	cancel(why)
	repo := newCheckout(t, deepspeedFiles())
	for _, arg := range []string{repo, "git+file://" + repo, sdist(t, deepspeedFiles())} {
		dir := t.TempDir()
		if _, err := OpenSource(ctx, arg, dir, os.Environ()); !errors.Is(err, why) {
			t.Errorf("%s: %v", arg, err)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%s: left %v", arg, left)
		}
	}
}

// sdist makes a source distribution of files.
func sdist(t *testing.T, files map[string]string) string {
	t.Helper()
	var headers []tar.Header
	for name, text := range files {
		h := tar.Header{Name: "deepspeed-0.19.8/" + name, Mode: 0o664, PAXRecords: map[string]string{"comment": text}, Uid: 1000}
		if strings.HasPrefix(name, "bin/") {
			h.Mode = 0o775
		}
		headers = append(headers, h)
	}
	return sourceTar(t, headers...)
}

// sourceTar makes deepspeed-0.19.8.tar.gz of entries; the content is in the
// comment.
func sourceTar(t *testing.T, entries ...tar.Header) string {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	w := tar.NewWriter(zip)
	for _, h := range entries {
		text := h.PAXRecords["comment"]
		h.PAXRecords = nil
		if h.Size == 0 {
			h.Size = int64(len(text))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	_ = w.Flush() // an entry may be cut short on purpose
	if err := errors.Join(zip.Close()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "deepspeed-0.19.8.tar.gz")
	if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestHostileSdists(t *testing.T) {
	top := "deepspeed-0.19.8/"
	for name, c := range map[string]struct {
		entries []tar.Header
		want    string
	}{
		"absolute":         {[]tar.Header{{Name: "/etc/passwd"}}, "could refer to another directory"},
		"upwards":          {[]tar.Header{{Name: top + "../../x"}}, "could refer to another directory"},
		"control":          {[]tar.Header{{Name: top + "a\x1b[2J"}}, "could refer to another directory"},
		"long":             {[]tar.Header{{Name: top + strings.Repeat("a/", 600)}}, "could refer to another directory"},
		"two folders":      {[]tar.Header{{Name: top + "a"}, {Name: "other/a"}}, "outside the directory deepspeed-0.19.8"},
		"no folder":        {[]tar.Header{{Name: "setup.py"}}, "the top is not a directory"},
		"twice":            {[]tar.Header{{Name: top + "a"}, {Name: top + "a"}}, "occurs twice"},
		"device":           {[]tar.Header{{Name: top + "a", Typeflag: tar.TypeChar}}, "not a file, directory or link"},
		"link out":         {[]tar.Header{{Name: top + "a", Typeflag: tar.TypeSymlink, Linkname: "../../etc"}}, "links to ../../etc"},
		"through a link":   {[]tar.Header{{Name: top + "a", Typeflag: tar.TypeSymlink, Linkname: "../.."}, {Name: top + "a/x"}}, "escapes"},
		"link in a link":   {[]tar.Header{{Name: top + "a", Typeflag: tar.TypeSymlink, Linkname: "/etc"}, {Name: top + "a/x", Typeflag: tar.TypeSymlink, Linkname: "c"}}, "escapes"},
		"hard link out":    {[]tar.Header{{Name: top + "a", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}}, "could refer to another directory"},
		"hard link beside": {[]tar.Header{{Name: top + "a", Typeflag: tar.TypeLink, Linkname: "b/c"}}, "outside the directory"},
		"hard link ahead":  {[]tar.Header{{Name: top + "a", Typeflag: tar.TypeLink, Linkname: top + "b"}}, "no such file"},
		"huge":             {[]tar.Header{{Name: top + "a", Size: 3 << 30}}, "more than 2147483648 bytes"},
		"cut":              {[]tar.Header{{Name: top + "a", Size: 100}}, "unexpected EOF"},
		"empty":            {nil, "empty file"},
	} {
		t.Run(name, func(t *testing.T) { refuse(t, sourceTar(t, c.entries...), 2, c.want) })
	}
	text := filepath.Join(writeTree(t, t.TempDir(), map[string]string{"a.tar.gz": "no gzip"}), "a.tar.gz")
	refuse(t, text, 2, "not a valid .tar.gz")
	bad := filepath.Join(t.TempDir(), "b.tar.gz")
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	_, _ = zip.Write(bytes.Repeat([]byte("no tar "), 500))
	if err := errors.Join(zip.Close(), os.WriteFile(bad, out.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
	refuse(t, bad, 2, "not a readable tar")
	out.Reset()
	zip.Reset(&out)
	w := tar.NewWriter(zip)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: top, Typeflag: tar.TypeDir, Mode: 0o755}), w.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	whole := out.Bytes()
	flipped := slices.Clone(whole)
	flipped[len(flipped)-8] ^= 1 // in the digest
	for name, data := range map[string][]byte{"another digest": flipped, "cut in the digest": whole[:len(whole)-3], "more behind it": append(slices.Clone(whole), "junk"...)} {
		if err := os.WriteFile(bad, data, 0o644); err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) { refuse(t, bad, 2, "damaged") })
	}
}

func TestHardLinkInAnSdistIsAFile(t *testing.T) {
	files := deepspeedFiles()
	var headers []tar.Header
	for name, text := range files {
		headers = append(headers, tar.Header{Name: "d/" + name, Mode: 0o644, PAXRecords: map[string]string{"comment": text}})
	}
	headers = append(headers, tar.Header{Name: "d/again.py", Typeflag: tar.TypeLink, Linkname: "d/setup.py"})
	if got := packed(t, mustOpen(t, sourceTar(t, headers...))); got["again.py"] != files["setup.py"] {
		t.Errorf("%q", got)
	}
}

func TestGitArguments(t *testing.T) {
	for arg, want := range map[string]gitRef{
		"https://git.example/a/b.git@v1":       {"https://git.example/a/b.git", "v1", "git+https://git.example/a/b.git@v1"},
		"https://git.example/a/b":              {"https://git.example/a/b", "", "git+https://git.example/a/b"},
		"https://u:s3cret@git.example/b@x/y":   {"https://u:s3cret@git.example/b", "x/y", "git+https://git.example/b@x/y"},
		"https://s3cret@git.example/b":         {"https://s3cret@git.example/b", "", "git+https://git.example/b"},
		"ssh://git@git.example:22/a/b@1a2b3c4": {"ssh://git@git.example:22/a/b", "1a2b3c4", "git+ssh://git.example:22/a/b@1a2b3c4"},
		"git@git.example:a/b.git@v1":           {"git@git.example:a/b.git", "v1", "git+git.example:a/b.git@v1"},
		"git@git.example:a/b.git":              {"git@git.example:a/b.git", "", "git+git.example:a/b.git"},
		"file:///srv/repo@refs/tags/v1":        {"file:///srv/repo", "refs/tags/v1", "git+file:///srv/repo@refs/tags/v1"},
	} {
		if got, err := parseGit(arg); err != nil || got != want {
			t.Errorf("%s: %+v, %v", arg, got, err)
		}
	}
	for _, arg := range []string{
		"", "-uexec", "--upload-pack=x@y", "ext::sh -c s3cret", "ext::sh@x", "git.example/a", "/srv/repo", "ftp://git.example/a", "git://git.example/a",
		"https://git.example", "https:///a", "https://git.example/a@", "https://git.example/a@-x", "https://git.example/a@x..y", "https://git.example/a@x y",
		"https://git.example/a@x^{/s}", "https://-oProxyCommand=s3cret/a", "-oProxy:a", "git@-oProxy:a", "https://git.example/a#egg=x@v1",
		"https://git.example/b?token=s3cret@v1", "ssh://u:s3cret@git.example/a", "https://u:s3cret%0a@git.example/a", "https://u:s3cret/more@git.example/a@v1", "https://u:s3cret@git.example/a@..", "ftp://u:s3cret@git.example/a", "https://u:s3cret@git exa/a", "https://u:s3'cret@:x/a",
	} {
		_, err := parseGit(arg)
		if fault.ExitCode(err) != fault.Usage || fault.Hint(err) == "" {
			t.Errorf("%s: %v", arg, err)
		} else if strings.Contains(err.Error()+fault.Hint(err), "s3cret") && !strings.Contains(arg, "ext::") && !strings.Contains(arg, "-oProxy") {
			t.Errorf("the secret is told: %v", err)
		}
	}
}

// What git itself says of a URL must not tell either.
func TestCredentialsAreNotTold(t *testing.T) {
	for _, url := range []string{
		"git+https://user:s3cret@127.0.0.1:1/a/b@v1", "git+http://s3cret@127.0.0.1:1/a", "git+ssh://user:s3cret@127.0.0.1:1/a@v1", "git+https://127.0.0.1:1/a?token=s3cret",
		"git+https://user:s3'cret@127.0.0.1:1/a",
	} {
		_, err := open(t, url)
		if err == nil || strings.Contains(err.Error()+fault.Hint(err), "s3") {
			t.Errorf("%s: %v; %s", url, err, fault.Hint(err))
		}
	}
	for text, want := range map[string]string{
		"unable to access 'https://u:s3cret@h/a': no": "unable to access 'https://h/a': no",
		"https://u:s@3/cret@h/a":                      "https://h/a",
	} {
		if got := redactURL(text); got != want {
			t.Errorf("%s", got)
		}
	}
}

func TestWithoutGit(t *testing.T) {
	repo := newCheckout(t, deepspeedFiles())
	t.Setenv("PATH", t.TempDir())
	refuse(t, "git+file://"+repo, 2, "git is not installed")
	refuse(t, repo, 2, "git is not installed")
	if s := mustOpen(t, writeTree(t, t.TempDir(), deepspeedFiles())); s.Kind != SourcePath {
		t.Errorf("%+v", s)
	}
}

func TestGitIsToldToBehave(t *testing.T) {
	env := gitEnv([]string{"HOME=/h", "GIT_DIR=/x", "GIT_TRACE_CURL=1", "GIT_SSL_CAINFO=/ca", "https_proxy=p"}, userVariables)
	for _, want := range []string{"HOME=/h", "GIT_SSL_CAINFO=/ca", "https_proxy=p", "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0", "GIT_ALLOW_PROTOCOL=https:http:ssh:file"} {
		if !slices.Contains(env, want) {
			t.Errorf("%s is not in %v", want, env)
		}
	}
	if text := strings.Join(env, " "); strings.Contains(text, "GIT_DIR") || strings.Contains(text, "GIT_TRACE") {
		t.Error(text)
	}
}
