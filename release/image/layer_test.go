package image

import (
	"path/filepath"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// One layer cannot have a file and a folder of one name.
func TestFileAndFolderOfTwoWheels(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var all []*installation
	for name, module := range map[string]string{"one": "tool", "two": "tool/deep/__init__.py"} {
		file := filepath.Join(dir, name+"-1.0-py3-none-any.whl")
		wheeltest.Write(t, file, map[string]string{
			module:                           "x = 1\n",
			name + "-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0\n",
			name + "-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		})
		a, err := wheel.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		i, err := installWheel(a, target{site: "/site", prefix: "/", python: "/bin/python3"})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, i)
	}
	if _, err := combine(all[:1]); err != nil {
		t.Error(err)
	}
	if _, err := combine(all); err == nil || err.Error() != "/site/tool is a file of one, and a folder of another wheel" {
		t.Error(err)
	}
}
