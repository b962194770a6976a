//go:build unix

package pipeline

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A pipe in the place of a file that dsbuild or git reads is rejected: nothing waits for it.
func TestPipesAreRefused(t *testing.T) {
	t.Parallel()
	sound := newCheckout(t, deepspeedFiles())
	library := newCheckout(t, map[string]string{"lib.py": "l = 1\n"})
	runGit(t, sound, "submodule", "--quiet", "add", library, "third_party/lib")
	runGit(t, sound, "commit", "-qam", "submodule")
	for _, name := range []string{
		".git/info/exclude", ".git/info/attributes", ".git/HEAD", ".git/config", ".git/index", ".git/refs/heads/x", ".git/objects/info/alternates",
		".git/commondir", ".git/modules/third_party/lib/HEAD", ".gitignore", "deepspeed/.gitignore", "deepspeed/.gitattributes", "third_party/lib/.gitignore",
		"third_party/lib/.git", "version.txt", "setup.py", "link to .cache/pipe",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "checkout")
			if err := os.CopyFS(dir, os.DirFS(sound)); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, name)
			if to, ok := strings.CutPrefix(name, "link to "); ok { // git ignores what it leads to
				path = filepath.Join(dir, to)
				writeTree(t, dir, map[string]string{".gitignore": ".cache\n", ".cache/x": ""})
				if err := os.Remove(filepath.Join(dir, "version.txt")); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(to, filepath.Join(dir, "version.txt")); err != nil {
					t.Fatal(err)
				}
			}
			_ = os.Remove(path) // it may not be there
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo(path, 0o644); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			s, err := OpenSource(ctx, dir, t.TempDir(), os.Environ())
			if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), filepath.Base(path)) && !strings.Contains(err.Error(), "version.txt") {
				t.Errorf("%+v, %v, want a refusal that names the file", s, err)
			}
		})
	}
	for _, name := range []string{"deepspeed-0.1.tar.gz", "deepspeed-0.1-py3-none-any.whl"} {
		path := filepath.Join(t.TempDir(), name)
		if err := syscall.Mkfifo(path, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenSource(t.Context(), path, t.TempDir(), os.Environ()); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
