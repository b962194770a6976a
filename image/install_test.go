package image_test

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dsbuild/dsbuild/image"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// installedByPip returns the files that pip writes into an environment, below its prefix.
func installedByPip(t *testing.T, python, whl string) map[string]string {
	t.Helper()
	prefix := t.TempDir()
	cmd := exec.CommandContext(t.Context(), python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--ignore-installed", "--no-warn-script-location", "--disable-pip-version-check", "--prefix", prefix, whl)
	cmd.Env = append(os.Environ(), "PIP_CONFIG_FILE=/dev/null", "PIP_ROOT_USER_ACTION=ignore")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("pip: %v: %s", err, out)
	}
	files := map[string]string{}
	err := filepath.WalkDir(prefix, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		below, _ := filepath.Rel(prefix, path)
		files["usr/local/"+filepath.ToSlash(below)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// The layer has the files that pip installs, byte for byte, but for the name of the installer, the
// URL of the wheel and the interpreter in scripts.
func TestInstalledAsByPip(t *testing.T) {
	if testing.Short() {
		t.Skip("short: runs pip")
	}
	python, err := exec.LookPath("python3.11")
	if err != nil {
		needs.Missing(t, "python3.11: %v", err)
	}
	opt := options(t, "", filepath.Join(t.TempDir(), "out.tar"))
	opt.Base = saved(t, baseOf(t, v1.Config{}, torchBase()))
	mustBuild(t, opt)
	ours := topLayer(t, opened(t, opt.Output))
	theirs := installedByPip(t, python, opt.Wheels[0].Path)
	maps.DeleteFunc(ours, func(name, _ string) bool { return strings.HasSuffix(name, "/") })
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		text, ok := ours[name]
		switch {
		case strings.HasSuffix(name, "/direct_url.json"):
			continue
		case !ok:
			t.Errorf("%s is missing", name)
		case strings.HasSuffix(name, "/INSTALLER"), strings.HasSuffix(name, "/RECORD"):
		case strings.HasPrefix(name, "usr/local/bin/"):
			if !strings.HasPrefix(text, "#!/usr/local/bin/python3.11\n") && name != "usr/local/bin/ds_shell" {
				t.Errorf("%s begins with %.40q", name, text)
			}
		case text != theirs[name]:
			t.Errorf("%s differs", name)
		}
		delete(ours, name)
	}
	if len(ours) > 0 {
		t.Errorf("more than pip installs: %q", slices.Sorted(maps.Keys(ours)))
	}
}

// RECORD lists every file of the layer with its digest, as importlib.metadata reads it.
func TestRecord(t *testing.T) {
	opt := options(t, saved(t, baseOf(t, v1.Config{}, torchBase())), filepath.Join(t.TempDir(), "out.tar"))
	mustBuild(t, opt)
	files := topLayer(t, opened(t, opt.Output))
	record := files[wheeltest.Member(t, files, ".dist-info/RECORD")]
	entries, err := wheel.ParseRecord(strings.NewReader(record))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, e := range entries {
		at := filepath.Join(site, e.Path)
		text, ok := files[at]
		if !ok || e.Size >= 0 && e.Size != int64(len(text)) || e.Algorithm == "" && !strings.HasSuffix(at, "/RECORD") {
			t.Errorf("%+v: there: %v, %d bytes", e, ok, len(text))
		}
		listed[at] = true
	}
	for name := range files {
		if !strings.HasSuffix(name, "/") && !listed[name] {
			t.Errorf("%s is not in RECORD", name)
		}
	}
	for _, name := range []string{"usr/local/bin/ds_run", "usr/local/bin/ds_report"} {
		if !listed[name] {
			t.Errorf("%s is not listed", name)
		}
	}
}

// Companions join the layer; two wheels with one file, and torch itself, are refused.
func TestCompanions(t *testing.T) {
	base := saved(t, baseOf(t, v1.Config{}, torchBase()))
	opt := options(t, base, filepath.Join(t.TempDir(), "out.tar"))
	hjson := plainWheel(t, "hjson", "3.1.0", "hjson/__init__.py")
	opt.Wheels = load(t, hjson, opt.Wheels[0].Path)
	if name := opt.Wheels[0].Manifest.Name; !strings.HasPrefix(name, "deepspeed-") {
		t.Errorf("%s comes first", name)
	}
	mustBuild(t, opt)
	if files := topLayer(t, opened(t, opt.Output)); files[site+"/hjson/__init__.py"] == "" || files[site+"/hjson-3.1.0.dist-info/INSTALLER"] != "dsbuild\n" {
		t.Error("the companion is not there")
	}
	opt.Wheels = load(t, opt.Wheels[0].Path, plainWheel(t, "other", "1.0", "deepspeed/launcher.py"))
	opt.Force = true
	if _, err := build(t, opt); err == nil || !strings.Contains(err.Error(), "deepspeed and other both have /"+site+"/deepspeed/launcher.py") {
		t.Error(err)
	}
	for _, c := range []struct{ path, want string }{
		{plainWheel(t, "torch", "2.15.0", "torch/__init__.py"), "it is a wheel of torch"},
		{hjson, "no wheel of DeepSpeed among"},
		{"gone.whl", "no wheel"},
	} {
		if _, err := image.LoadWheels(t.Context(), []string{c.path}, noCache()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.path, err)
		}
	}
}

// plainWheel makes a wheel without code of a distribution with one module.
func plainWheel(t testing.TB, name, version, module string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+"-"+version+"-py3-none-any.whl")
	info := name + "-" + version + ".dist-info/"
	wheeltest.Write(t, path, map[string]string{
		module:            "one = 1\n",
		info + "METADATA": "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n",
		info + "WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
	})
	return path
}
