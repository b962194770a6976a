package rules

import (
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

// TestImports reads every Go file of the module, with any build constraints, and checks its
// imports.
func TestImports(t *testing.T) {
	files := 0
	for folder, imports := range packages(t) {
		files += len(imports)
		if !slices.ContainsFunc(Imports(), func(r Rule) bool {
			return folder == r.Folder || strings.HasPrefix(folder, r.Folder+"/")
		}) {
			t.Errorf("package %s: no rule says what it may import; does its layer exist already (docs/architecture.md)?", folder)
		}
		for file, paths := range imports {
			for _, path := range paths {
				if reason := Violation(folder, path); reason != "" {
					t.Errorf("package %s imports %s (%s): %s", folder, path, filepath.Base(file), reason)
				}
			}
		}
	}
	if files < 30 {
		t.Errorf("only %d files were read", files)
	}
}

// TestPicture: in the picture of layers in docs/architecture.md every import goes down, with the exceptions named above it.
func TestPicture(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, picture, _ := strings.Cut(string(page), "<!-- text: the layers -->\n```\n")
	picture, _, found := strings.Cut(picture, "\n```")
	if !found {
		t.Fatal("docs/architecture.md has no picture of the layers")
	}
	levels := map[string]int{}
	for i, line := range strings.Split(picture, "\n") {
		for _, folder := range strings.Fields(line) {
			levels[folder] = i + 1
		}
	}
	roomOf := func(folder string) string {
		for folder != "." && levels[folder] == 0 {
			folder = filepath.Dir(folder)
		}
		return folder
	}
	for folder, imports := range packages(t) {
		from := roomOf(folder)
		if from == "." {
			t.Errorf("package %s is in no room of the picture", folder)
		}
		if slices.Contains([]string{"internal/connect", "internal/slurm"}, folder) || strings.HasPrefix(folder, "internal/testkit") {
			continue
		}
		for _, path := range slices.Concat(slices.Collect(maps.Values(imports))...) {
			inner, ours := strings.CutPrefix(path, Module+"/")
			if to := roomOf(inner); ours && to != from && levels[to] <= levels[from] {
				t.Errorf("%s imports %s, which is not below it on the picture", folder, inner)
			}
		}
	}
}

// packages returns the imports of the module's packages, by folder and file.
func packages(t *testing.T) map[string]map[string][]string {
	t.Helper()
	all := make(map[string]map[string][]string)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return skipFolder(path, entry)
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		if all[folder] == nil {
			all[folder] = make(map[string][]string)
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			all[folder][path] = append(all[folder][path], imported)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// skipFolder skips folders that are not packages of this module.
func skipFolder(path string, entry fs.DirEntry) error {
	if path == root {
		return nil
	}
	name := entry.Name()
	if name == "testdata" || name == "vendor" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
		return filepath.SkipDir
	}
	if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil {
		return filepath.SkipDir
	}
	return nil
}

// The rules find the violations for which they were made.
func TestViolation(t *testing.T) {
	const m = Module + "/"
	for _, c := range []struct {
		folder, path string
		refused      bool
	}{
		{"wheel", m + "fleet/node", true},
		{"wheel", m + "wheel/elf", false},
		{"wheel/elf", m + "compat", true},
		{"wheel", "debug/elf", false},
		{"compat", m + "wheel", false},
		{"compat", m + "pipeline/engine", true},
		{"pipeline", "dagger.io/dagger", true},
		{"pipeline/daggerbuilder", "dagger.io/dagger", false},
		{"pipeline/daggerbuilder", m + "inventory", true},
		{"inventory", "net", true},
		{"inventory/ansible", "os/exec", true},
		{"inventory", "net/netip", false},
		{"fleet/deploy", "golang.org/x/crypto/ssh/agent", true},
		{"launch/lint", "os/exec", true},
		{"launch/lint/script", m + "internal/lineerr", false},
		{"launch/lint", m + "launch", true},
		{"fleet/deploy", m + "internal/remote", false},
		{"internal/remote", "golang.org/x/crypto/ssh/agent", false},
		{"internal/ui", m + "internal/fault", false},
		{"internal/ui", m + "inventory", true},
		{"release/index", m + "wheel", false},
		{"release/index", m + "compat", true},
		{"cmd/dsbuild", m + "fleet/deploy", false},
	} {
		if reason := Violation(c.folder, c.path); (reason != "") != c.refused {
			t.Errorf("%s importing %s: %q", c.folder, c.path, reason)
		}
	}
}
