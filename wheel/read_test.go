package wheel

import (
	"archive/zip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const name = "deepspeed-0.19.8+torch2.15.cu132.v3-cp311-cp311-linux_x86_64.whl"

const metadata = `Metadata-Version: 2.1
Name: deepspeed
Version: 0.19.8+torch2.15.cu132.v3
Requires-Dist: einops
Requires-Dist: numpy>=1.21
Requires-Dist: torch<2.16,>=2.15
Requires-Dist: clang-format==18.1.3; extra == "dev"

A description.
`

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

func TestReadMetadata(t *testing.T) {
	m, err := ReadMetadata(write(t, name, [2]string{"deepspeed-0.19.8.dist-info/METADATA", metadata}))
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(m.RequiresDist, "|")
	if m.Name != "deepspeed" || m.Version != "0.19.8+torch2.15.cu132.v3" ||
		got != `einops|numpy>=1.21|torch<2.16,>=2.15|clang-format==18.1.3; extra == "dev"` {
		t.Errorf("%+v", m)
	}
}

func TestReadManifest(t *testing.T) {
	manifest := `{"name":"` + name + `","version":"0.19.8+torch2.15.cu132.v3","ops":["utils"]}`
	file := write(t, name, [2]string{"deepspeed-0.19.8.dist-info/dsbuild.json", manifest})
	m, err := ReadManifest(file)
	if err != nil {
		t.Fatal(err)
	}
	info, _ := os.Stat(file)
	if m.Size != info.Size() || len(m.SHA256) != 64 || m.Ops[0] != "utils" {
		t.Errorf("%+v", m)
	}
}

func TestReadManifestRefuses(t *testing.T) {
	manifest := [2]string{"x.dist-info/dsbuild.json", `{"name":"` + name + `","version":"1"}`}
	truncated := write(t, name, manifest)
	if err := os.Truncate(truncated, 40); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct{ file, want string }{
		"no manifest":      {write(t, name, [2]string{"x.dist-info/METADATA", metadata}), "no dsbuild manifest"},
		"truncated":        {truncated, "zip"},
		"two manifests":    {write(t, name, manifest, manifest), "two files"},
		"another name":     {write(t, "other.whl", manifest), "its manifest names"},
		"not JSON":         {write(t, name, [2]string{manifest[0], "{"}), "manifest:"},
		"huge":             {write(t, name, [2]string{manifest[0], strings.Repeat(" ", maxText+1)}), "larger than"},
		"deeper directory": {write(t, name, [2]string{"a/x.dist-info/dsbuild.json", "{}"}), "no dsbuild manifest"},
	} {
		_, err := ReadManifest(c.file)
		var bad *FileError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), c.want) || bad.ExitCode() != 4 {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}
