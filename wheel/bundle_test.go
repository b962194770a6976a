package wheel_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/schema"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// pure makes a small wheel of Python in dir.
func pure(t *testing.T, dir, name, version string, files map[string]string) string {
	t.Helper()
	stem := strings.ReplaceAll(name, "-", "_")
	info := stem + "-" + version + ".dist-info/"
	all := map[string]string{
		info + "METADATA": "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\nRequires-Dist: a>1\n",
		info + "WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
	}
	for n, text := range files {
		all[n] = text
	}
	path := filepath.Join(dir, stem+"-"+version+"-py3-none-any.whl")
	wheeltest.Write(t, path, all)
	return path
}

func because() map[string]*wheel.Source {
	return map[string]*wheel.Source{"my-companion": {Kind: "git", Ref: "git+https://git.example/a", Commit: "0123"}}
}

func TestBundleIsReadAsWritten(t *testing.T) {
	dir := t.TempDir()
	pure(t, dir, "hjson", "3.1.0", map[string]string{"hjson/__init__.py": ""})
	pure(t, dir, "My-Companion", "1.0+g1234567", nil)
	if err := os.WriteFile(filepath.Join(dir, "notes.txt"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	written, err := wheel.WriteBundle(t.Context(), dir, "3.11", because())
	if err != nil {
		t.Fatal(err)
	}
	read, err := wheel.ReadBundle(t.Context(), dir)
	if err != nil || len(read.Wheels) != 2 || len(written.Wheels) != 2 || read.Python != "3.11" {
		t.Fatalf("%+v, %v", read, err)
	}
	w := read.Wheels[0]
	if w.Name != "my-companion" || w.Why != wheel.Companion || w.Source == nil || w.Source.Commit != "0123" || w.Version != "1.0+g1234567" || w.Path == "" || w.Tags[0] != "py3-none-any" || len(w.Requires) != 1 || read.Wheels[1].Why != wheel.Dependency {
		t.Errorf("%+v", read)
	}
	text, err := os.ReadFile(filepath.Join(dir, wheel.BundleName))
	if err != nil {
		t.Fatal(err)
	}
	schema.Check(t, "wheelhouse", text)
	if _, err := wheel.WriteBundle(t.Context(), dir, "3.11", because()); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(filepath.Join(dir, wheel.BundleName)); err != nil || string(again) != string(text) {
		t.Errorf("written twice it differs: %s\n%s", text, again)
	}
}

func TestHostileBundles(t *testing.T) {
	for name, c := range map[string]struct {
		change func(b *wheel.Bundle, dir string)
		want   string
	}{
		"path":           {func(b *wheel.Bundle, _ string) { b.Wheels[0].File = "../" + b.Wheels[0].File }, "invalid wheel file name"},
		"absolute":       {func(b *wheel.Bundle, _ string) { b.Wheels[0].File = "/etc/x-1-py3-none-any.whl" }, "invalid wheel file name"},
		"no wheel":       {func(b *wheel.Bundle, _ string) { b.Wheels[0].File = "passwd" }, "invalid wheel file name"},
		"option":         {func(b *wheel.Bundle, _ string) { b.Wheels[0].File = "--x-1-py3-none-any.whl" }, "invalid wheel file name"},
		"other name":     {func(b *wheel.Bundle, _ string) { b.Wheels[0].Name = "other" }, "listed as"},
		"other version":  {func(b *wheel.Bundle, _ string) { b.Wheels[0].Version = "9" }, "listed as"},
		"no normal name": {func(b *wheel.Bundle, _ string) { b.Wheels[0].Name = "HJSON" }, "listed as"},
		"no hash":        {func(b *wheel.Bundle, _ string) { b.Wheels[0].SHA256 = "" }, "sha256 or size"},
		"other hash":     {func(b *wheel.Bundle, _ string) { b.Wheels[0].SHA256 = strings.Repeat("a", 64) }, "sha256 "},
		"other size":     {func(b *wheel.Bundle, _ string) { b.Wheels[0].Size++ }, "sha256 "},
		"no reason":      {func(b *wheel.Bundle, _ string) { b.Wheels[0].Why = "" }, "unknown reason"},
		"twice":          {func(b *wheel.Bundle, _ string) { b.Wheels = append(b.Wheels, b.Wheels[0]) }, "twice"},
		"no Python":      {func(b *wheel.Bundle, _ string) { b.Python = "3; rm" }, "is not a Python version"},
		"gone":           {func(b *wheel.Bundle, dir string) { os.Remove(filepath.Join(dir, b.Wheels[0].File)) }, "no such file"},
		"a folder": {func(b *wheel.Bundle, dir string) {
			os.Remove(filepath.Join(dir, b.Wheels[0].File))
			os.Mkdir(filepath.Join(dir, b.Wheels[0].File), 0o755)
		}, "no such file"},
		"too many":        {func(b *wheel.Bundle, _ string) { b.Wheels = make([]wheel.BundleWheel, 3000) }, "more than 2000"},
		"brings torch":    {func(b *wheel.Bundle, dir string) { rebuilt(t, b, dir, "torch/__init__.py") }, "would write torch/__init__.py, which belongs to torch"},
		"brings torch.py": {func(b *wheel.Bundle, dir string) { rebuilt(t, b, dir, "torch.py") }, "would write torch.py, which belongs to torch"},
		"hides torch":     {func(b *wheel.Bundle, dir string) { rebuilt(t, b, dir, "hjson-3.1.0.data/platlib/torch/x.py") }, "which belongs to torch"},
		"brings nvidia":   {func(b *wheel.Bundle, dir string) { rebuilt(t, b, dir, "nvidia/cu13/lib/x.so") }, "which belongs to NVIDIA's packages"},
		"deepspeed":       {func(b *wheel.Bundle, dir string) { rebuilt(t, b, dir, "deepspeed/x.py") }, "which belongs to DeepSpeed"},
		"settings":        {func(b *wheel.Bundle, dir string) { rebuilt(t, b, dir, "hjson-3.1.0.data/data/pyvenv.cfg") }, "which belongs to the environment"},
		"command":         {func(b *wheel.Bundle, dir string) { rebuilt(t, b, dir, "hjson-3.1.0.data/scripts/activate") }, "which belongs to the environment"},
		"no zip":          {func(b *wheel.Bundle, dir string) { replaced(t, b, dir, "no zip") }, "not a zip file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			pure(t, dir, "hjson", "3.1.0", map[string]string{"hjson/__init__.py": ""})
			b, err := wheel.WriteBundle(t.Context(), dir, "3.11", because())
			if err != nil {
				t.Fatal(err)
			}
			c.change(&b, dir)
			text, err := json.Marshal(b)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, wheel.BundleName), text, 0o644); err != nil {
				t.Fatal(err)
			}
			_, err = wheel.ReadBundle(t.Context(), dir)
			if fault.ExitCode(err) != fault.Wheel || fault.Hint(err) == "" || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	if _, err := wheel.ReadBundle(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "not a wheelhouse") {
		t.Error(err)
	}
}

// rebuilt makes the wheel of a bundle anew with another file in it.
func rebuilt(t *testing.T, b *wheel.Bundle, dir, file string) {
	t.Helper()
	listed(t, b, pure(t, dir, "hjson", "3.1.0", map[string]string{file: ""}))
}

// replaced puts other bytes in the place of the wheel.
func replaced(t *testing.T, b *wheel.Bundle, dir, text string) {
	t.Helper()
	file := filepath.Join(dir, b.Wheels[0].File)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	listed(t, b, file)
}

func listed(t *testing.T, b *wheel.Bundle, file string) {
	t.Helper()
	var err error
	if b.Wheels[0].SHA256, b.Wheels[0].Size, err = wheel.HashFile(file); err != nil {
		t.Fatal(err)
	}
}

func TestTorchIsInNoBundle(t *testing.T) {
	for name, want := range map[string]bool{
		"torch": true, "Triton": true, "nvidia-cublas": true, "nvidia_cudnn_cu12": true, "cuda-toolkit": true,
		"nvidia-ml-py": false, "nvidia_ml_py": false, "torchvision": false, "numpy": false, "transformers": false,
	} {
		if got := wheel.IsTorchPackage(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	for _, name := range []string{"triton", "deepspeed"} {
		dir := t.TempDir()
		pure(t, dir, name, "1.0", nil)
		if _, err := wheel.WriteBundle(t.Context(), dir, "3.11", because()); err == nil {
			t.Errorf("%s was taken into a bundle", name)
		}
	}
}

func FuzzBundle(f *testing.F) {
	f.Add(`{"python":"3.11","wheels":[{"file":"a-1-py3-none-any.whl","name":"a","version":"1","sha256":"` + strings.Repeat("0", 64) + `","size":1,"why":"dependency"}]}`)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(filepath.Join(dir, wheel.BundleName), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		// No wheel is there: a list that names one is never taken for right.
		if b, err := wheel.ReadBundle(t.Context(), dir); err == nil && len(b.Wheels) > 0 {
			t.Errorf("%+v", b)
		}
	})
}
