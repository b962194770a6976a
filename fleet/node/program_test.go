package node_test

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/node"
	pythons "github.com/dsbuild/dsbuild/internal/testkit/python"
)

// The oldest Python that nodes may have compiles every module; each name in a module is defined or imported there,
// and each import is there and is used.
func TestModulesOfThePackage(t *testing.T) {
	t.Parallel()
	python, err := pythons.Find(t.Context(), "3.8")
	if err != nil {
		if python, err = exec.LookPath("python3"); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), python, "-I", "testdata/names.py", "python/dsbuild_node").CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// Each program that the Go files name is a module with the function that it begins with.
func TestProgramsAreModules(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`\b(NewFollowUp\()?(?:node\.)?NewProgram\("(\w+)"\)`)
	found := 0
	err := filepath.WalkDir("../..", func(path string, entry os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			begins := "\ndef main():"
			if m[1] != "" {
				begins = "\ndef follow("
			}
			source, err := os.ReadFile("python/dsbuild_node/" + m[2] + ".py")
			if err != nil || !strings.Contains(string(source), begins) {
				t.Errorf("%s: %s: want a module with%s (%v)", path, m[0], strings.ReplaceAll(begins, "\n", " "), err)
			}
			found++
		}
		return err
	})
	if err != nil || found < 10 {
		t.Errorf("%d programs, %v", found, err)
	}
}

// Each order that a package sends is one that its agent on the node knows, and the agent knows no others.
func TestOrdersAreKnown(t *testing.T) {
	t.Parallel()
	sent := regexp.MustCompile(`"do": "(\w+)"`)
	table := regexp.MustCompile(`(?s)def verbs\(.*?\n    }|for name in \("begin".*?\)`)
	entry := regexp.MustCompile(`"(\w+)"[:,)]`)
	for module, packages := range map[string][]string{
		"deploy":        {"fleet/deploy", "fleet/change"},
		"environments":  {"fleet/envdeploy", "fleet/change"},
		"check_cluster": {"launch/check"},
		"relay":         {"fleet/relay"},
	} {
		asks, knows := map[string]bool{}, map[string]bool{}
		findsJobs := false // of the orders of fleet/change, users is for the agents that know it
		for _, dir := range packages {
			files, err := filepath.Glob("../../" + dir + "/*.go")
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				if strings.HasSuffix(file, "_test.go") {
					continue
				}
				text := read(t, file)
				for _, m := range sent.FindAllStringSubmatch(text, -1) {
					asks[m[1]] = true
				}
				findsJobs = findsJobs || strings.Contains(text, ".AgentFindsJobs = true")
			}
		}
		if !findsJobs {
			delete(asks, "users")
		}
		for _, m := range entry.FindAllStringSubmatch(table.FindString(read(t, "python/dsbuild_node/"+module+".py")), -1) {
			knows[m[1]] = true
		}
		if !maps.Equal(asks, knows) || len(asks) == 0 {
			t.Errorf("%s: Go asks for %v; the module knows %v", module, slices.Sorted(maps.Keys(asks)), slices.Sorted(maps.Keys(knows)))
		}
	}
}

// Modules import each other in one direction, also where a function imports one when it needs it.
func TestModulesHaveNoCircle(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("python/dsbuild_node/*.py")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	imports, line := map[string][]string{}, regexp.MustCompile(`(?m)^\s*from dsbuild_node\.(\w+) import|^\s*import dsbuild_node\.(\w+)`)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".py")
		for _, m := range line.FindAllStringSubmatch(read(t, file), -1) {
			imports[name] = append(imports[name], m[1]+m[2])
		}
	}
	var follow func(path []string)
	follow = func(path []string) {
		for _, next := range imports[path[len(path)-1]] {
			if slices.Contains(path, next) {
				t.Errorf("a circle of imports: %s", strings.Join(append(path, next), " -> "))
			} else {
				follow(append(slices.Clone(path), next))
			}
		}
	}
	for name := range imports {
		follow([]string{name})
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What lies on a node is never imported in place of the package, nor what boot imports from its working directory.
func TestModulesOfTheNodeAreNotRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	hostile := "raise SystemExit('it runs ' + __name__)\n"
	for _, file := range []string{"dsbuild_node/__init__.py", "dsbuild_node/controller.py", "dsbuild_node/probe.py", "dsbuild_node/json.py", "zlib.py", "json.py"} {
		write(t, filepath.Join(dir, file), hostile)
	}
	path := t.TempDir()
	write(t, filepath.Join(path, "dsbuild_node/__init__.py"), hostile)
	write(t, filepath.Join(path, "dsbuild_node/controller.py"), hostile)
	in := local{within: []string{"env", "-C", dir}, env: with("PYTHONPATH=" + path)}
	if f := probe(t, in, node.ProbeOptions{}); f.Python == "" {
		t.Errorf("%q", f.Missing)
	}
	if _, err := node.FindProcesses(context.Background(), in, "python3"); err != nil {
		t.Error(err)
	}
}
