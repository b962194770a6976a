//go:build linux

package main

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/adrg/xdg"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/spf13/pflag"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/pages"
	"github.com/dsbuild/dsbuild/internal/testkit/slurm"
	"github.com/dsbuild/dsbuild/internal/testkit/slurm/slurmtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/launch/why"
)

// repository is where the pages lie.
const repository = "../.."

// documentation reads all pages, and fails for each that cannot be.
func documentation(t *testing.T) []pages.Page {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(repository, "docs", "*.md"))
	if err != nil || len(files) < 15 {
		t.Fatalf("%d pages in docs, %v", len(files), err)
	}
	examples, err := filepath.Glob(filepath.Join(repository, "examples", "*", "README.md"))
	if err != nil || len(examples) == 0 {
		t.Fatalf("examples: %v, %v", examples, err)
	}
	files = append(files, examples...)
	for _, name := range []string{"SECURITY.md", "CONTRIBUTING.md", "README.md"} {
		files = slices.Insert(files, 0, filepath.Join(repository, name))
	}
	var all []pages.Page
	for _, file := range files {
		p, err := pages.Read(file)
		if err != nil {
			t.Error(err)
			continue
		}
		all = append(all, p)
	}
	return all
}

// TestPagesParse holds every command of every page, also those within a text and
// those that are not executed, against the program as it is; a command of another
// program can only be executed, or its page says why it is not. What tests a page
// names must exist.
func TestPagesParse(t *testing.T) {
	t.Parallel()
	tests := allTests(t)
	for _, p := range documentation(t) {
		for _, s := range p.Spans {
			_, err := parses(asTyped(s.Text))
			if err != nil { // a flag may be named without its value
				_, err = parses(asTyped(s.Text) + " 1")
			}
			if err != nil {
				t.Errorf("%s:%d: %s: %v", p.Path, s.Line, s.Text, err)
			}
		}
		for _, b := range p.Blocks {
			for _, c := range b.Commands {
				known, err := parses(c.Text)
				if err != nil {
					t.Errorf("%s:%d: %s: %v", p.Path, c.Line, c.Text, err)
				}
				if c.How == pages.Parse && !known {
					t.Errorf("%s:%d: %s: no command of ours, so that nothing is parsed: <!-- not run: WHY -->", p.Path, c.Line, c.Text)
				}
				for _, name := range append(c.Tests, testName.FindAllString(c.Why, -1)...) {
					if !tests[name] {
						t.Errorf("%s:%d: there is no test %s", p.Path, c.Line, name)
					}
				}
			}
			for _, name := range testName.FindAllString(b.About, -1) {
				if !tests[name] {
					t.Errorf("%s:%d: there is no test %s", p.Path, b.Line, name)
				}
			}
		}
	}
}

// TestSignsParse: the commands in the table of signs, and in the advice of --submit, can be typed as they are.
func TestSignsParse(t *testing.T) {
	t.Parallel()
	quoted := regexp.MustCompile(`'(dsbuild [^']*)'`)
	commands := 0
	for _, s := range why.Signs() {
		typed := []string{s.Prevent}
		for _, m := range quoted.FindAllStringSubmatch(s.Hint+" "+s.Advice(), -1) {
			typed = append(typed, m[1])
		}
		for _, line := range typed {
			if line == "" {
				continue
			}
			commands++
			words := strings.Fields(line)[1:]
			cmd, rest, err := newRootCommand(&app{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard}).Find(words)
			if err := cmp.Or(err, accepted(words), cmd.ParseFlags(rest), cmd.ValidateArgs(cmd.Flags().Args())); err != nil {
				t.Errorf("%s: %s: %v", s.ID, line, err)
			}
		}
	}
	if commands < 80 {
		t.Errorf("only %d commands were found", commands)
	}
}

var testName = regexp.MustCompile(`\bTest[A-Z]\w*`)

// TestPicturesParse: what pictures show can still be typed. They say it in their description.
func TestPicturesParse(t *testing.T) {
	t.Parallel()
	pictures, err := filepath.Glob(filepath.Join(repository, "docs", "pictures", "*.svg"))
	if err != nil || len(pictures) == 0 {
		t.Fatal("no pictures", err)
	}
	for _, file := range pictures {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var picture struct {
			Desc string `xml:"desc"`
		}
		if err := xml.Unmarshal(text, &picture); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		commands := 0
		for line := range strings.Lines(picture.Desc) {
			if typed, ok := strings.CutPrefix(line, "$ "); ok {
				commands++
				if _, err := parses(typed); err != nil {
					t.Errorf("%s: %s: %v: make pictures", file, typed, err)
				}
			}
		}
		if commands == 0 {
			t.Errorf("%s shows no command", file)
		}
	}
}

// allTests are the names of the tests and fuzz tests of all packages of both modules, whatever their build tags.
func allTests(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	form := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := filepath.WalkDir(repository, func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		code, err := os.ReadFile(path)
		for _, m := range form.FindAllSubmatch(code, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil || len(names) < 100 {
		t.Fatalf("%d tests, %v", len(names), err)
	}
	return names
}

// asTyped makes a command of one that stands within a sentence: what is left out,
// and what stands for any kind of job.
func asTyped(text string) string {
	text = strings.NewReplacer("…", "", " KIND", " torchrun").Replace(text)
	return strings.Replace(text, "dsbuild launch -", "dsbuild launch torchrun -", 1)
}

// parses holds the calls of dsbuild, make and go in a shell's line against what
// there is. It reports whether there was one.
func parses(line string) (bool, error) {
	file, err := syntax.NewParser().Parse(strings.NewReader(line), "")
	if err != nil {
		return false, err
	}
	config := &expand.Config{Env: expand.FuncEnviron(func(string) string { return "x" }), CmdSubst: func(io.Writer, *syntax.CmdSubst) error { return nil }}
	known := false
	syntax.Walk(file, func(n syntax.Node) bool {
		call, ok := n.(*syntax.CallExpr)
		if !ok || len(call.Args) == 0 || err != nil {
			return err == nil
		}
		if !slices.Contains([]string{"dsbuild", "bin/dsbuild", "make", "go"}, call.Args[0].Lit()) {
			return true
		}
		var words []string
		if words, err = expand.Fields(config, call.Args...); err != nil {
			return false
		}
		switch words[0] {
		case "dsbuild", "bin/dsbuild":
			known, err = true, accepted(words[1:])
		case "make":
			known, err = true, targets(words[1:])
		case "go":
			known, err = true, goPackages(words[1:])
		}
		return err == nil
	})
	return known, err
}

// accepted asks the real command whether it takes these words. Nothing is started.
func accepted(words []string) error {
	a := &app{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard, reporter: ui.New(io.Discard, ui.Options{}), version: "v0"}
	root := newRootCommand(a)
	cmd, rest, err := root.Find(words)
	switch {
	case err != nil:
		return err
	case !cmd.Runnable() || cmd == root && len(rest) > 0 && !strings.HasPrefix(rest[0], "-"):
		return errors.New("there is no such command")
	}
	if err := cmd.ParseFlags(rest); err != nil && !errors.Is(err, pflag.ErrHelp) {
		return err
	}
	return cmd.ValidateFlagGroups()
}

// targets asks the Makefile for the targets among the words.
func targets(words []string) error {
	makefile, err := os.ReadFile(filepath.Join(repository, "Makefile"))
	if err != nil {
		return err
	}
	for _, w := range words {
		if !strings.Contains(w, "=") && !strings.Contains(string(makefile), "\n"+w+":") {
			return fmt.Errorf("the Makefile has no target %s", w)
		}
	}
	return nil
}

// goPackages looks for the folders among the words of a go command.
func goPackages(words []string) error {
	for _, w := range words {
		if !strings.HasPrefix(w, "./") {
			continue
		}
		if _, err := os.Stat(filepath.Join(repository, strings.TrimSuffix(w, "..."))); err != nil {
			return err
		}
	}
	return nil
}

// sandbox is where the commands of one page run, one after the other.
type sandbox struct {
	dir   string
	env   []string
	login *slurm.Cluster // on whose login node they run, or nil: here
}

// TestPagesRun executes the commands of every page in a folder of the page's own
// and compares what they say with what the page shows. testdata/pages/PAGE.txtar
// says what lies there before, and what the page needs. Pages that need a cluster with
// Slurm are those of TestFullSlurmPages.
func TestPagesRun(t *testing.T) {
	t.Parallel()
	summary := runPages(t, func(needs []string) bool { return !slices.Contains(needs, "slurm") })
	if dir := os.Getenv("DSBUILD_TEST_DIR"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, "pages"), []byte(summary), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// runPages executes the commands of the pages that a function chooses by what they need, and returns how many there are.
func runPages(t *testing.T, chosen func(needs []string) bool) string {
	t.Helper()
	fleet := sync.OnceValue(func() *nodes.Fleet { return standInNodes(t) })
	counts, spans := map[pages.Level]int{}, 0
	var summary strings.Builder
	for _, p := range documentation(t) {
		path := strings.TrimPrefix(filepath.ToSlash(p.Path), repository+"/")
		name := strings.ToLower(strings.ReplaceAll(strings.TrimSuffix(path, ".md"), "/", "-"))
		setup := readSetup(t, name)
		if !chosen(setup.needs) {
			continue
		}
		ran := false
		t.Run(name, func(t *testing.T) {
			s := newSandbox(t, p.Path, setup, fleet)
			for _, b := range p.Blocks {
				s.block(t, p, b)
			}
			ran = true
		})
		skipped := 0
		own := map[pages.Level]int{}
		spans += len(p.Spans)
		for _, b := range p.Blocks {
			for _, c := range b.Commands {
				if !ran && (c.How == pages.Run || c.How == pages.DryRun) {
					skipped++
					continue
				}
				counts[c.How]++
				own[c.How]++
			}
		}
		fmt.Fprintf(&summary, "%-24s %s\n", path, countsLine(own))
		if skipped > 0 {
			fmt.Fprintf(&summary, "%-24s %d skipped\n", "", skipped)
		}
	}
	fmt.Fprintf(&summary, "commands of the pages: %s; %d within texts, parsed only\n", countsLine(counts), spans)
	t.Log("\n" + summary.String())
	return summary.String()
}

// standInNodes are three nodes for the pages, whose stub claims to be the torch that pages show.
func standInNodes(t *testing.T) *nodes.Fleet {
	t.Helper()
	fleet := nodestest.Up(t, nodes.Options{Count: 3, Env: nodes.FakeTorch, QuickPip: true})
	for _, n := range fleet.Nodes {
		claimTorch(t, n, nodes.DefaultTorch, "13.2")
	}
	return fleet
}

func countsLine(counts map[pages.Level]int) string {
	var parts []string
	for level := pages.Run; level <= pages.NotRun; level++ {
		if counts[level] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[level], level))
		}
	}
	return strings.Join(parts, ", ")
}

// setup is testdata/pages/PAGE.txtar: files for the page's folder, the parts that the page needs, and a script that runs first.
type setup struct {
	page   string
	files  *txtar.Archive
	needs  []string
	script string
}

func readSetup(t *testing.T, page string) setup {
	t.Helper()
	archive, err := txtar.ParseFile(filepath.Join("testdata", "pages", page+".txtar"))
	if errors.Is(err, os.ErrNotExist) {
		archive, err = new(txtar.Archive), nil
	}
	if err != nil {
		t.Fatal(err)
	}
	s := setup{page: page, files: archive, script: string(archive.Comment)}
	if first, rest, _ := strings.Cut(s.script, "\n"); strings.HasPrefix(first, "needs:") {
		s.needs, s.script = strings.Fields(first)[1:], rest
	}
	return s
}

// newSandbox lays out the files of a page and runs what has to be done before. An example's page has the files of its folder.
func newSandbox(t *testing.T, path string, before setup, fleet func() *nodes.Fleet) *sandbox {
	t.Helper()
	s := &sandbox{dir: t.TempDir()}
	home := filepath.Join(s.dir, ".home")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	s.env = append(os.Environ(), "HOME="+home, "LC_ALL=C.UTF-8", "NO_COLOR=1", "COLUMNS=80", "REPO="+absolute(t, repository))
	s.bring(t, before.needs, fleet)
	if err := txtar.Write(before.files, s.dir); err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(before.page, "examples-") {
		if err := os.CopyFS(s.dir, os.DirFS(filepath.Dir(path))); err != nil {
			t.Fatal(err)
		}
	}
	if s.login != nil {
		command(t, s.dir, "chown", "-R", strconv.Itoa(slurm.UserID), ".")
	}
	if said, code := s.sh(t, before.script, ""); code != 0 {
		t.Fatalf("before the page: exit %d\n%s", code, said)
	}
	return s
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// bring brings the parts that a page needs. Where make test has not made the real ones the page is
// skipped, and fails where the variable CI is true.
func (s *sandbox) bring(t *testing.T, parts []string, fleet func() *nodes.Fleet) {
	t.Helper()
	for _, part := range parts {
		switch part {
		case "wheel":
			_, dist := realWheel(t)
			s.env = append(s.env, "DIST="+dist)
		case "stand-in": // for the wheel, on nodes whose torch is a stub
			dist := t.TempDir()
			wheeltest.Packed(t, dist, standIn)
			s.env = append(s.env, "DIST="+dist)
		case "other": // wheel, of another DeepSpeed
			other := standIn
			other.Version = "0.19.7"
			s.env = append(s.env, "OTHER="+wheeltest.Packed(t, t.TempDir(), other))
		case "store": // with the wheel of make test in it, for plans of its engine
			realWheel(t)
			s.env = append(s.env, "XDG_CACHE_HOME="+xdg.CacheHome, "XDG_STATE_HOME="+xdg.StateHome)
		case "engine":
			if doc, _ := realWheel(t); doc.Wheels[0].Manifest.Builder == "host" && os.Getenv("CI") != "true" {
				t.Skip("the page shows plans of a container engine")
			}
		case "nodes":
			if testing.Short() { // what all pages share cannot skip one of them
				t.Skip("short: runs real nodes")
			}
			s.env = append(s.env, "NODES="+fleet().Inventory)
		case "torch": // nodes of the page's own, with the real one
			s.env = append(s.env, "NODES="+nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.WithTorch}).Inventory)
		case "slurm":
			s.atLogin(t)
		default:
			t.Fatalf("no part %q", part)
		}
	}
}

// standIn is a wheel that fits where the wheel of make test does, and loads where torch is a stub.
var standIn = wheeltest.Options{Stable: "2.10", Files: wheeltest.LoadedByPython(), Ops: []wheeltest.Op{{Name: "cpu_adam", Dir: "adam"}}}

// atLogin puts the sandbox on the login node of a Slurm cluster, for a user who is not
// root: with two nodes, and a wheel for them in dist.
func (s *sandbox) atLogin(t *testing.T) {
	t.Helper()
	c := slurmtest.Up(t, slurm.Options{Nodes: 2, GPUs: 8, CPUs: 80, Partitions: []string{"gpu"}})
	for _, n := range c.Nodes {
		if err := n.FakeTorch(t.Context(), "/opt/train"); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command(t, c.Home, "mkdir", "bin", "dist")
	command(t, c.Home, "cp", self, "bin/dsbuild") // by this name it is the program
	command(t, c.Home, "cp", newFaultWheel(t, "0.19.8", 0).path, "dist")
	s.login, s.dir = c, c.Home
}

// command is a line for the shell of whoever reads the page.
func (s *sandbox) command(ctx context.Context, line string) *exec.Cmd {
	words := []string{"-euo", "pipefail", "-c", line}
	if s.login != nil {
		cmd := s.login.UserCommand(ctx, "bash", words...)
		cmd.Env = append(cmd.Env, "NO_COLOR=1", "PATH="+s.dir+"/bin:/usr/bin:/bin")
		return cmd
	}
	cmd := exec.CommandContext(ctx, "bash", words...)
	cmd.Dir, cmd.Env = s.dir, s.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	return cmd
}

// block writes the file that a block is, or executes its commands.
func (s *sandbox) block(t *testing.T, p pages.Page, b pages.Block) {
	t.Helper()
	if b.File != "" {
		if err := os.WriteFile(filepath.Join(s.dir, b.File), []byte(b.Text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range b.Commands {
		line := c.Text
		switch c.How {
		case pages.Run:
		case pages.DryRun:
			line = withDryRun(line)
		case pages.By, pages.Recorded, pages.Parse, pages.NotRun:
			continue
		}
		start := time.Now()
		said, code := s.sh(t, line, c.Input)
		t.Logf("%s:%d: %s: %.1f s", filepath.Base(p.Path), c.Line, line, time.Since(start).Seconds())
		if code != c.Exit {
			t.Errorf("%s:%d: %s: exit %d, want %d\n%s", p.Path, c.Line, line, code, c.Exit, said)
			continue
		}
		if c.Output != "" && !c.Loose && c.How == pages.Run && !shown(c.Output).MatchString(plain(said)) {
			t.Errorf("%s:%d: %s says\n%s\nand the page shows\n%s", p.Path, c.Line, line, said, c.Output)
		}
	}
}

// withDryRun asks a command of dsbuild what it would do.
func withDryRun(line string) string {
	command, comment, has := strings.Cut(line, " #")
	command = strings.TrimRight(command, " ") + " --dry-run"
	if has {
		command += " #" + comment
	}
	return command
}

// sh runs a line as a user's shell would.
func (s *sandbox) sh(t *testing.T, line, input string) (said string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := s.command(ctx, line)
	cmd.Stdin, cmd.WaitDelay = strings.NewReader(input), time.Minute
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("%s: %v\n%s", line, errors.Join(err, ctx.Err()), out)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

var blanks = regexp.MustCompile(`[ \t]+`)

// plain is an output without the width of its columns.
func plain(said string) string {
	return strings.TrimSpace(blanks.ReplaceAllString(said, " "))
}

// shown is what a page shows, as an expression: "…" stands for anything in a
// line, and a line of it alone for any lines.
func shown(output string) *regexp.Regexp {
	var b strings.Builder
	for line := range strings.Lines(plain(output)) {
		switch line = strings.TrimSpace(line); line {
		case "…":
			b.WriteString(`(?:.*(?:\n|$))*?`)
		default:
			b.WriteString(strings.ReplaceAll(regexp.QuoteMeta(line), "…", `.*`) + `\s*\n?`)
		}
	}
	return regexp.MustCompile(`^\s*` + b.String() + `\s*$`)
}
