package wheel_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/dsbuild/dsbuild/wheel"
)

func TestBeside(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a-1-py3-none-any.whl")
	for _, other := range []string{"a-1-py3-none-any.whl-b.json", "a-1-py3-none-any.whm.json", "a-1-py3-none-any.json", "b.json"} {
		if err := os.WriteFile(filepath.Join(dir, other), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, suffix := range []string{"", ".manifest.json", ".provenance.json", ".provenance.json.sig", ".bytecode.xz", ".metadata", ".bak", "~", ".json.swp"} {
		if err := os.WriteFile(file+suffix, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	folders := wheel.Folders{}
	got, err := folders.Beside(file)
	if want := []string{".bytecode.xz", ".manifest.json", ".provenance.json", ".provenance.json.sig"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	if err := os.Symlink("/etc/passwd", file+".more.json"); err != nil {
		t.Fatal(err)
	}
	// The folder is read once.
	if again, err := folders.Beside(file); err != nil || !slices.Equal(again, got) {
		t.Errorf("%q, %v", again, err)
	}
	link := new(wheel.LinkError)
	if _, err := (wheel.Folders{}).Beside(file); !errors.As(err, &link) {
		t.Error(err)
	}
}
