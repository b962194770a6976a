package pipeline

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/wheel"
)

// A run lists its own files anew, and those that nobody has listed. Every other line stays, so that sha256sum -c
// shows what became of a file, and the lines of other people stay as they are.
func TestSumsAreKept(t *testing.T) {
	dir := t.TempDir()
	write := func(text string, names ...string) {
		t.Helper()
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	list := func(mine string) map[string]string {
		t.Helper()
		err := writeSums(dir, mine)
		text, read := os.ReadFile(filepath.Join(dir, wheel.SumsName))
		if err != nil || read != nil {
			t.Fatal(err, read)
		}
		sums := map[string]string{}
		for line := range strings.Lines(string(text)) {
			_, name, _ := wheel.ParseSum(line)
			sums[name] = line
		}
		return sums
	}
	if err := os.Mkdir(filepath.Join(dir, wheel.WheelhouseDir), 0o755); err != nil {
		t.Fatal(err)
	}
	names := []string{"a-1.whl", "a-1.whl" + wheel.ManifestSuffix, "a-10.whl", "wheelhouse/c.whl", "notes.txt", "gone.whl"}
	write("before", names...)
	foreign := strings.Repeat("0", 64) + " *notes.txt\n" + strings.Repeat("1", 64) + "  ./a-10.whl\n" + strings.Repeat("2", 64) + "  gone.whl\n# a remark\n"
	write(foreign, wheel.SumsName)
	if err := os.Remove(filepath.Join(dir, "gone.whl")); err != nil {
		t.Fatal(err)
	}
	first := list("a-1.whl")
	if len(first) != 6 || first["notes.txt"] == "" || first["a-10.whl"] != strings.Repeat("1", 64)+"  ./a-10.whl\n" {
		t.Errorf("%q, want five files and the remark, with the lines of others as they were", first)
	}
	write("after", names[:5]...)
	for mine, want := range map[string][]string{"a-1.whl": names[:2], wheel.WheelhouseDir: names[3:4]} {
		before := first
		first = list(mine)
		for name, line := range first {
			if changed := before[name] != line; changed != slices.Contains(want, name) {
				t.Errorf("%s: the line of %s has changed: %v, want %v", mine, name, changed, !changed)
			}
		}
	}
}

// The digest of a file that only a link has put there is nobody's business.
func TestSumsLeaveOutLinks(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	house := t.TempDir()
	for _, file := range []string{secret, filepath.Join(house, "a-1-py3-none-any.whl")} {
		if err := os.WriteFile(file, []byte("s3cret"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	for name, to := range map[string]string{"x-1-py3-none-any.whl": secret, "x-1-py3-none-any.whl" + wheel.ManifestSuffix: secret, wheel.WheelhouseDir: house} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeSums(dir, ""); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, wheel.SumsName)); err != nil || len(text) > 0 {
		t.Errorf("%q, %v", text, err)
	}
}
