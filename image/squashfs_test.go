package image_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dsbuild/dsbuild/image"
	"github.com/dsbuild/dsbuild/internal/hint"
)

// Without its program a squashfs is refused with the way out, and nothing is left.
func TestNoSquashProgram(t *testing.T) {
	dir := t.TempDir()
	opt := replacing(t, filepath.Join(dir, "out.sqsh"))
	t.Setenv("PATH", t.TempDir())
	if _, err := image.FindSquashProgram(); err == nil || !strings.Contains(hint.Of(err), "squashfs-tools") {
		t.Errorf("%v, hint %q", err, hint.Of(err))
	}
	if _, err := build(t, opt); err == nil {
		t.Error("written")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A squashfs holds the base's files and the wheel, flattened, with enroot's files; a program that
// fails leaves nothing.
func TestSquashfs(t *testing.T) {
	if _, err := exec.LookPath("sqfstar"); err != nil {
		t.Skip("sqfstar is not installed: part image of make test-full runs this with it")
	}
	dir := t.TempDir()
	opt := replacing(t, filepath.Join(dir, "out.sqsh"))
	mustBuild(t, opt)
	root := filepath.Join(dir, "root")
	if out, err := exec.CommandContext(t.Context(), "unsquashfs", "-no-xattrs", "-d", root, opt.Output).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, want := range map[string]string{
		site + "/torch/version.py":      "2.15.0+cu132",
		site + "/deepspeed/launcher.py": "def main",
		"usr/lib/os-release":            "ID=debian",
		"etc/environment":               "A=b c\nPATH=/bin\n",
		"etc/rc":                        "cd '/work dir' || exit 1\n",
	} {
		if got := string(readFile(t, filepath.Join(root, name))); !strings.Contains(got, want) {
			t.Errorf("%s: %q", name, got)
		}
	}
	if _, err := os.Stat(filepath.Join(root, site, "deepspeed/gone.py")); err == nil {
		t.Error("the old DeepSpeed is still there")
	}
	first := readFile(t, opt.Output)
	opt.Force = true
	time.Sleep(time.Second) // times in a squashfs are whole seconds
	mustBuild(t, opt)
	if string(readFile(t, opt.Output)) != string(first) {
		t.Error("the second squashfs differs")
	}
}

// replacing are those for a base with an older DeepSpeed and a command.
func replacing(t *testing.T, output string) image.Options {
	t.Helper()
	files := torchBase()
	files[site+"/deepspeed/gone.py"] = "old\n"
	files[site+"/deepspeed-0.17.0.dist-info/METADATA"] = "old\n"
	return options(t, saved(t, baseOf(t, v1.Config{Env: []string{"A=b c", "PATH=/bin"}, WorkingDir: "/work dir", Cmd: []string{"it's", "me"}}, files)), output)
}

// The script that enroot runs quotes the words of the image.
func TestStartScript(t *testing.T) {
	for _, c := range []struct {
		config v1.Config
		args   []string
		want   string
	}{
		{v1.Config{Entrypoint: []string{"/bin/echo", "it's"}, Cmd: []string{"a b"}, WorkingDir: "/"}, nil, "it's a b\n"},
		{v1.Config{Entrypoint: []string{"/bin/echo", "$HOME"}, Cmd: []string{"a b"}}, []string{"c", "d"}, "$HOME c d\n"},
		{v1.Config{Cmd: []string{"/bin/echo", "only"}}, nil, "only\n"},
	} {
		file := filepath.Join(t.TempDir(), "rc")
		if err := os.WriteFile(file, []byte(image.StartScript(c.config)), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), "sh", append([]string{file}, c.args...)...).CombinedOutput()
		if err != nil || string(out) != c.want {
			t.Errorf("%+v: %v: %q", c.config, err, out)
		}
	}
}
