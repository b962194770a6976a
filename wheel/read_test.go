package wheel

import (
	"archive/zip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
)

const name = "deepspeed-0.19.8+torch2.15.cu132.v3-cp311-cp311-linux_x86_64.whl"

const distInfo = "deepspeed-0.19.8+torch2.15.cu132.v3.dist-info/"

// write makes a wheel of the given files.
func write(t *testing.T, file string, members ...[2]string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), file)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	for _, m := range members {
		w, err := z.Create(m[0])
		if err == nil {
			_, err = w.Write([]byte(m[1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadManifest(t *testing.T) {
	manifest := `{"name":"` + name + `","version":"0.19.8+torch2.15.cu132.v3","ops":["utils"]}`
	file := write(t, name, [2]string{distInfo + ManifestName, manifest})
	m, err := ReadManifest(file)
	if err != nil {
		t.Fatal(err)
	}
	info, _ := os.Stat(file)
	if m.Size != info.Size() || len(m.SHA256) != 64 || m.Ops[0] != "utils" {
		t.Errorf("%+v", m)
	}
}

// Nobody is told to rename a package of another kind to a wheel.
func TestOtherPackage(t *testing.T) {
	for _, file := range []string{"foo-1.0.tar.gz", "foo-1.0-py3.11.egg", "foo-1.0-0.conda", "foo.zip"} {
		_, err := ReadManifest(write(t, file, [2]string{"a", "b"}))
		if fault.ExitCode(err) != fault.Wheel || !strings.Contains(fault.Hint(err), "pass a .whl file") {
			t.Errorf("%s: %v, hint %q", file, err, fault.Hint(err))
		}
	}
}

func TestReadManifestRefuses(t *testing.T) {
	manifest := [2]string{distInfo + ManifestName, `{"name":"` + name + `","version":"1"}`}
	truncated := write(t, name, manifest)
	if err := os.Truncate(truncated, 40); err != nil {
		t.Fatal(err)
	}
	renamed := strings.Replace(name, "cp311-linux", "cp311-win", 1)
	for what, c := range map[string]struct{ file, want string }{
		"no manifest":      {write(t, name, [2]string{distInfo + "METADATA", metadata}), "no dsbuild manifest"},
		"truncated":        {truncated, "not a zip file"},
		"two manifests":    {write(t, name, manifest, manifest), "occurs twice"},
		"another name":     {write(t, renamed, manifest), "the manifest is of " + name},
		"no wheel's name":  {write(t, "other.whl", manifest), "invalid wheel file name: want NAME-VERSION"},
		"another version":  {write(t, strings.Replace(name, ".v3", ".v4", 1), manifest), "the file name is of another distribution"},
		"not JSON":         {write(t, name, [2]string{manifest[0], "{"}), "manifest:"},
		"huge":             {write(t, name, [2]string{manifest[0], strings.Repeat(" ", maxText+1)}), "larger than"},
		"deeper directory": {write(t, name, manifest, [2]string{"a/x-1.dist-info/dsbuild.json", "{}"}), ""},
	} {
		_, err := ReadManifest(c.file)
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			continue
		}
		if fault.ExitCode(err) != fault.Wheel || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}
