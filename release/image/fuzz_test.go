package image_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/release/image"
)

// No tar makes the reader of bases panic or leave its file.
func FuzzBase(f *testing.F) {
	f.Add(readFile(f, saved(f, baseOf(f, v1.Config{}, torchBase()))))
	f.Add(tarOf(f, map[string]string{"manifest.json": `[{"Config":"c","Layers":["l"]}]`, "c": `{"rootfs":{"type":"layers","diff_ids":["sha256:00"]}}`, "l": "-> ../../etc/passwd"}))
	f.Add(tarOf(f, map[string]string{"index.json": `{"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"sha256:` + strings.Repeat("0", 64) + `"}]}`}))
	f.Fuzz(func(t *testing.T, data []byte) {
		file := filepath.Join(t.TempDir(), "base.tar")
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
		image.ReadBase(t.Context(), file)
	})
}

// The command of the hint prints the flags that dsbuild asks for.
func TestShowFacts(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		needs.Missing(t, "python3: %v", err)
	}
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "torch"), 0o755); err != nil {
		t.Fatal(err)
	}
	text := "__version__ = '2.15.0+cu132'\nclass version: cuda = '13.2'\n"
	if err := os.WriteFile(filepath.Join(dir, "torch/__init__.py"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(image.ShowFacts, "python3", python, 1))
	cmd.Env = append(os.Environ(), "PYTHONPATH="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "--python 3.") || !strings.Contains(string(out), " --torch 2.15.0+cu132 --cuda 13.2 --glibc 2.") || !strings.Contains(string(out), " --site-packages /") {
		t.Errorf("%v: %s", err, out)
	}
}
