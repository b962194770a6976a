package deploy_test

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// pipInstall installs wheels by a pip that the environment need not have.
func (e environment) pipInstall(t *testing.T, pip sharedPip, wheels ...string) {
	t.Helper()
	args := append([]string{
		filepath.Join(pip.folder(t), "pip"), "-q", "install", "--disable-pip-version-check", "--no-cache-dir", "--no-deps", "--no-index", "--force-reinstall",
	}, wheels...)
	cmd := exec.Command(e.python, args...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("pip: %v\n%s", err, out)
	}
}

// The quick pip leaves the files of the real one, with their modes and contents: of what is new, and in place of an older version.
func TestQuickPip(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	all := func(version, module string) []string {
		extra := small{name: "odd-Name", version: version, files: map[string]string{
			"odd_name/" + module: "x = 1\n", "single.py": "", "odd_name/data.txt": "1\n",
			"console": "[console_scripts]\nodd = odd_name:main\nrun.it=odd_name.sub:Main.run [x]\n\n[gui_scripts]\nwindow = odd_name:show\n[other]\nno = odd_name:no\n",
			"odd_Name-" + version + ".data/scripts/tool":                "#!python -E\nprint(1)\n",
			"odd_Name-" + version + ".data/scripts/shell":               "#!/bin/sh\n",
			"odd_Name-" + version + ".data/data/share/odd/table":        "1 2 3\n",
			"odd_Name-" + version + ".data/platlib/odd_name/native.py":  "y = 1\n",
			"odd_Name-" + version + ".data/purelib/odd_name/version.py": "z = 1\n",
			"odd_Name-" + version + ".data/headers/odd.h":               "int x;\n",
		}}
		return []string{makeWheel(t, dir, wheelOptions{version: version}), extra.write(t, dir)}
	}
	first, second := all("0.19.7", "__init__.py"), all("0.19.8", "sub/__init__.py")
	var trees []map[string]string
	for _, pip := range []sharedPip{realPip, quickPip} {
		e := newEnvironmentIn(t, t.TempDir(), "")
		for _, wheels := range [][]string{first, second} {
			e.pipInstall(t, pip, wheels...)
			trees = append(trees, e.contents(t))
		}
	}
	for i, what := range []string{"new", "replaced"} {
		real, quick := trees[i], trees[i+2]
		if len(real) < 40 {
			t.Errorf("%s: pip has left %d files", what, len(real))
		}
		if !maps.Equal(real, quick) {
			for name := range maps.Keys(real) {
				if quick[name] != real[name] {
					t.Errorf("%s: %s is\n%s\nwant\n%s", what, name, quick[name], real[name])
				}
			}
			for name := range maps.Keys(quick) {
				if _, ok := real[name]; !ok {
					t.Errorf("%s: %s is not pip's", what, name)
				}
			}
		}
	}
}

// contents is every file of the environment with its mode and content, as if the environment was at /venv. RECORD is without the
// digests of files that name the environment. Byte code is there or not, and direct_url.json, which is another in each pip.
func (e environment) contents(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(e.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		switch {
		case strings.HasSuffix(path, ".pyc"), d.Name() == "direct_url.json":
			data = nil
		case d.Name() == "RECORD":
			var rows [][]byte
			for row := range bytes.Lines(data) {
				if bytes.HasPrefix(row, []byte("../../../bin/")) || bytes.Contains(row, []byte("/direct_url.json,")) {
					row = row[:bytes.IndexByte(row, ',')]
				}
				rows = append(rows, row)
			}
			data = bytes.Join(rows, nil)
		}
		files[strings.TrimPrefix(path, e.dir)] = info.Mode().String() + " " + strings.ReplaceAll(string(data), e.dir, "/venv")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
