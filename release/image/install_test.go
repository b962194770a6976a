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

	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/release/image"
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
	if _, err := build(t, opt); err == nil || !strings.Contains(err.Error(), "the wheel of other would write deepspeed/launcher.py, which belongs to DeepSpeed") {
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

// A wheel writes only files that nothing else owns: neither the interpreter nor another package of the base, known by
// its files, nor torch, DeepSpeed and the environment in any base.
func TestFilesOfOthers(t *testing.T) {
	files := torchBase()
	files[site+"/numpy/__init__.py"] = "numpy\n"
	files[site+"/six.py"] = "six\n"
	files["usr/local/lib/libz.so"] = "ELF"
	files["usr/local/bin/tool"] = "tool\n"
	files[site+"/evil-0.9.dist-info/METADATA"] = "Name: evil\n"
	files[site+"/evil-0.9.dist-info/RECORD"] = "evil/__init__.py,,\nold.py,,\n"
	files[site+"/evil/__init__.py"] = "old\n"
	files[site+"/old.py"] = "old\n"
	base := saved(t, baseOf(t, v1.Config{}, files))
	for module, want := range map[string]string{
		"torch/version.py":               "belongs to torch",
		"torch.py":                       "belongs to torch",
		"deepspeed/version/__init__.py":  "belongs to DeepSpeed",
		"sitecustomize.py":               "belongs to the interpreter",
		"DATA/data/pyvenv.cfg":           "belongs to the environment",
		"DATA/data/lib/python3.11/os.py": "belongs to the environment",
		"DATA/data/sbin/init":            "belongs to the environment",
		"numpy/core.py":                  "the base has /" + site + "/numpy/__init__.py",
		"numpy/__init__.py":              "the base has /" + site + "/numpy/__init__.py",
		"six/__init__.py":                "the base has /" + site + "/six.py",
		"DATA/data/lib/libz.so":          "the base has /usr/local/lib/libz.so",
		"DATA/scripts/tool":              "the base has /usr/local/bin/tool",
		".wh.torch/x.py":                 "for the removal of a file",
		"evil/.wh.x":                     "for the removal of a file",
		"evil/__init__.py":               "",
		"old.py":                         "",
		"DATA/data/share/man/evil.1":     "",
	} {
		opt := options(t, base, filepath.Join(t.TempDir(), "out.tar"))
		opt.Wheels = append(opt.Wheels, load(t, opt.Wheels[0].Path, plainWheel(t, "evil", "1.0", strings.Replace(module, "DATA", "evil-1.0.data", 1)))[1])
		r, err := build(t, opt)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", module, err, want)
		}
		if err == nil && !slices.Contains(r.Hidden, site+"/evil-0.9.dist-info") {
			t.Errorf("%s: hidden %q, want the older version's metadata", module, r.Hidden)
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
