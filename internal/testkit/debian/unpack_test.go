package debian_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/debian"
)

// programs puts stand-ins for apt-get and dpkg-deb on PATH. If listed is false, the machine's
// own package lists are empty.
func programs(t *testing.T, listed bool) (calls string) {
	t.Helper()
	bin := t.TempDir()
	calls = filepath.Join(bin, "calls")
	know := "exit 0"
	if !listed {
		know = `case "$*" in *Dir::State::lists=*) ;; *) echo "E: Unable to locate package" >&2; exit 100;; esac`
	}
	apt := `#!/bin/sh
echo "apt-get $*" >>` + calls + `
case " $* " in
*" update "*) exit 0 ;;
esac
` + strings.Replace(know, "exit 0", ":", 1) + `
case " $* " in
*" -s "*) echo "Inst libextra (1.0)"; echo "Inst tool (2.0)"; echo "Conf tool" ;;
*" download libextra tool "*) touch libextra_1.deb tool_2.deb ;;
*) exit 100 ;;
esac
`
	deb := "#!/bin/sh\n" + `mkdir -p "$3/usr" && cp "$2" "$3/usr/$(basename "$2")"` + "\n"
	for name, text := range map[string]string{"apt-get": apt, "dpkg-deb": deb} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return calls
}

func TestUnpack(t *testing.T) {
	for _, listed := range []bool{true, false} {
		calls := programs(t, listed)
		dir := filepath.Join(t.TempDir(), "cache", "tool")
		for range 2 { // the second time nothing is downloaded
			if err := debian.Unpack(t.Context(), dir, "tool"); err != nil {
				t.Fatal(err)
			}
		}
		for _, file := range []string{"libextra_1.deb", "tool_2.deb"} {
			if _, err := os.Stat(filepath.Join(dir, "usr", file)); err != nil {
				t.Error(err)
			}
		}
		said, err := os.ReadFile(calls)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(said), " download "); n != 1 {
			t.Errorf("downloaded %d times:\n%s", n, said)
		}
		if updated := strings.Contains(string(said), " update"); updated == listed {
			t.Errorf("lists known %v, updated %v", listed, updated)
		}
		left, err := filepath.Glob(filepath.Join(filepath.Dir(dir), "unpack-*"))
		if err != nil || len(left) > 0 {
			t.Error(left, err)
		}
	}
}

// A download that fails leaves nothing that looks like a package.
func TestUnpackFails(t *testing.T) {
	programs(t, true)
	dir := filepath.Join(t.TempDir(), "tool")
	t.Setenv("PATH", t.TempDir())
	if err := debian.Unpack(t.Context(), dir, "tool"); err == nil {
		t.Error("unpacked without apt-get")
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("left a folder")
	}
}
