//go:build linux

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/internal/testkit/pages"
)

// TestEveryFlagIsUsed: some test uses every command and every flag of docs/commands.md, in a command line that is not refused
// as wrong usage. Commands share flags: one use of flags that have the same name and help is enough, because one function
// adds them.
func TestEveryFlagIsUsed(t *testing.T) {
	t.Parallel()
	root := newRootCommand(&app{})
	// What these flags do needs a large download or a build: tests of the code behind them show it.
	behind := map[string]string{
		"dsbuild nightly --nvcc-deb": "TestSiteToolkit",
		"dsbuild rebuild --base":     "TestRebuildRequest",
		"dsbuild ship --deps":        "TestShipGathersWhatNodesLack",
	}
	tests, used := allTests(t), map[string]bool{}
	for at, test := range behind {
		cmd, rest, err := root.Find(strings.Fields(at)[1:])
		if err != nil || !tests[test] {
			t.Fatalf("%s: %v; test %s: %v", at, err, test, tests[test])
		}
		f := cmd.Flags().Lookup(strings.TrimPrefix(rest[0], "--"))
		used[f.Name+f.Usage] = true
	}
	for _, words := range slices.Concat(wordsOfScripts(t), wordsOfPages(t), wordsOfTests(t)) {
		cmd, rest, err := root.Find(words)
		if err != nil || cmd == root {
			continue
		}
		used[cmd.CommandPath()] = true
		for _, f := range flagsIn(cmd, rest) {
			used[f.Name+f.Usage] = true
		}
	}
	for _, cmd := range allCommands(root) {
		if cmd.Hidden || cmd.Name() == "help" {
			continue
		}
		if !used[cmd.CommandPath()] {
			t.Errorf("no test uses %s", cmd.CommandPath())
		}
		if cmd.HasParent() && cmd.Parent().Name() == "completion" {
			continue // the flags are cobra's
		}
		cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && f.Name != "help" && !used[f.Name+f.Usage] {
				t.Errorf("no test uses --%s as %s has it: show what it does in a script of testdata/script", f.Name, cmd.CommandPath())
			}
		})
	}
}

// flagsIn returns the flags among the words of a command, up to those of a program.
func flagsIn(cmd *cobra.Command, words []string) (flags []*pflag.Flag) {
	for _, word := range words {
		name, _, _ := strings.Cut(word, "=")
		var f *pflag.Flag
		switch {
		case name == "--":
			return flags
		case strings.HasPrefix(name, "--"):
			f = cmd.Flags().Lookup(name[2:])
		case strings.HasPrefix(name, "-") && len(name) > 1:
			f = cmd.Flags().ShorthandLookup(name[1:2])
		}
		if f != nil {
			flags = append(flags, f)
		}
	}
	return flags
}

// wordsOfScripts are the command lines of scripts that are not refused as wrong usage.
func wordsOfScripts(t *testing.T) (all [][]string) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^(?:\[\S+\] )?(?:exec|exits [^2]\d*) dsbuild (.+)$`)
	for _, m := range findInFiles(t, "testdata/script/*.txtar", line) {
		all = append(all, strings.Fields(m[1]))
	}
	return all
}

// wordsOfPages are the commands of pages that a test executes.
func wordsOfPages(t *testing.T) (all [][]string) {
	t.Helper()
	for _, p := range documentation(t) {
		for _, b := range p.Blocks {
			for _, c := range b.Commands {
				words := strings.Fields(c.Text)
				i := slices.IndexFunc(words, func(w string) bool { return w == "dsbuild" || w == "bin/dsbuild" })
				if i >= 0 && c.How != pages.Parse && c.How != pages.NotRun && c.Exit != exitUsage {
					all = append(all, words[i+1:])
				}
			}
		}
	}
	return all
}

// wordsOfTests are the texts in the lists and calls of this package's tests, from the name of a command on. Those in
// messages are none.
func wordsOfTests(t *testing.T) (all [][]string) {
	t.Helper()
	var names []string
	for _, cmd := range newRootCommand(&app{}).Commands() {
		names = append(names, cmd.Name())
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			var texts []ast.Expr
			switch n := n.(type) {
			case *ast.CompositeLit:
				texts = n.Elts
			case *ast.CallExpr:
				if !isMessage(n) && !isRefused(n) {
					texts = n.Args
				}
			}
			var words []string
			for _, e := range texts {
				if text, ok := e.(*ast.BasicLit); ok && text.Kind == token.STRING {
					said, _ := strconv.Unquote(text.Value) //nolint:errcheck // it is parsed
					words = append(words, strings.Fields(said)...)
				}
			}
			if i := slices.IndexFunc(words, func(w string) bool { return slices.Contains(names, w) }); i >= 0 {
				all = append(all, words[i:])
			}
			return true
		})
	}
	return all
}

// isRefused reports whether a call says the exit code of wrong usage.
func isRefused(call *ast.CallExpr) bool {
	return slices.ContainsFunc(call.Args, func(e ast.Expr) bool {
		code, ok := e.(*ast.BasicLit)
		return ok && code.Kind == token.INT && code.Value == strconv.Itoa(exitUsage)
	})
}

// isMessage reports whether the texts of a call are for people, or are looked for.
func isMessage(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	in, ok := f.X.(*ast.Ident)
	return ok && f.Sel.Name != "Fields" && slices.Contains([]string{"t", "fmt", "strings", "errors", "regexp"}, in.Name)
}
