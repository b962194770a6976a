package deploy_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// A damaged wheel is refused before any node is asked anything, whatever else
// lies in the folder.
func TestLoadWheelsNamesTheDamage(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	for _, d := range wheeltest.Damages() {
		dir := t.TempDir()
		d.Damaged(t, dir)
		wheeltest.Packed(t, dir, wheeltest.Options{Version: "0.19.7"})
		_, err := wheel.LoadAll(t.Context(), dir)
		if fault.ExitCode(err) != fault.Wheel || !strings.Contains(err.Error(), d.Finding) {
			t.Errorf("%s: %v, want %s", d.Name, err, d.Finding)
		}
	}
}

// A DeepSpeed wheel that dsbuild did not build is taken for what it holds.
func TestLoadWheelsWithoutManifest(t *testing.T) {
	t.Parallel()
	wheels := load(t, wheeltest.Compiled(t, t.TempDir(), wheeltest.Options{}))
	m := wheels[0].Manifest
	if strings.Join(m.Ops, ",") != "cpu_adam,fused_adam" || strings.Join(m.Archs, ",") != "8.0" || m.CPU != "x86-64-v3" ||
		m.Torch != "2.15" || m.CUDA != "13.2" || m.Python != "3.11" || m.Glibc != "2.14" || m.SHA256 == "" || m.Name == "" {
		t.Errorf("%+v", m)
	}
}

func TestLoadWheelsOfSomethingElse(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "other-1.0-py3-none-any.whl")
	wheeltest.Write(t, path, map[string]string{
		"other-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: other\nVersion: 1.0\n",
		"other-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
	})
	_, err := wheel.LoadAll(t.Context(), path)
	var usage interface{ ExitCode() int }
	if !errors.As(err, &usage) || !strings.Contains(err.Error(), "is a wheel of other; only DeepSpeed can be deployed") {
		t.Error(err)
	}
}

// A wheel of DeepSpeed that brings files of others would have their folders
// moved aside on every node.
func TestLoadWheelsRefusesForeignFolders(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"torch/__init__.py", "einops.py", "Torch/x.py", "DATA/purelib/torch/x.py", "DATA/data/.dsbuild/evil", "DATA/headers/x.h",
		"deepspeed_x.pth", "deepspeed.pth", "DATA/platlib/x.pth", "deepspeed_extra/__init__.py", "deepspeed.py",
		"DATA/data/lib/python3.11/site-packages/x.pth", "sitecustomize.py", "DeepSpeed/x.py",
	} {
		inside := strings.Replace(name, "DATA", "deepspeed-0.19.8+torch2.15.cu132.sm80.v2.data", 1)
		_, err := wheel.LoadAll(t.Context(), makeWheel(t, t.TempDir(), wheelOptions{files: map[string]string{inside: "x"}}))
		top, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(name, "DATA/purelib/"), "DATA/platlib/"), "/")
		if fault.ExitCode(err) != fault.Wheel || !strings.Contains(err.Error(), "outside DeepSpeed's own directory: ") || top != "DATA" && !strings.Contains(err.Error(), top) {
			t.Errorf("%s: %v", name, err)
		}
	}
	load(t, makeWheel(t, t.TempDir(), wheelOptions{files: map[string]string{"deepspeed/extra.py": ""}}))
}
