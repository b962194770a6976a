package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/launch/why"
	"github.com/dsbuild/dsbuild/pipeline/engine"
)

var update = flag.Bool("update", false, "write docs/commands.md and docs/tables.md")

const regenerate = "go test ./cmd/dsbuild -run TestGeneratedPages -update"

// TestGeneratedPages holds the pages that are made from the program against it.
func TestGeneratedPages(t *testing.T) {
	for name, want := range map[string]string{"commands.md": commandsPage(), "tables.md": tablesPage(t)} {
		path := filepath.Join("..", "..", "docs", name)
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != want {
			t.Errorf("docs/%s is not what the program says (%v): %s", name, err, regenerate)
		}
	}
}

// TestArchitecture: the files that docs/architecture.md names exist, and the page stays short.
func TestArchitecture(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	if len(page) > 10<<10 {
		t.Errorf("docs/architecture.md has %d bytes, at most %d are allowed", len(page), 10<<10)
	}
	if files := namedFiles(t, string(page)); files < 5 {
		t.Errorf("docs/architecture.md names %d files", files)
	}
}

// namedFiles returns how many files of the repository a text names; each must be there.
func namedFiles(t *testing.T, text string) int {
	t.Helper()
	files := regexp.MustCompile("`([a-z_/]+/[a-z_]+\\.[a-z]+)`").FindAllStringSubmatch(text, -1)
	for _, file := range files {
		if _, err := os.Stat(filepath.Join("..", "..", file[1])); err != nil {
			t.Error(err)
		}
	}
	return len(files)
}

// Every file that CONTRIBUTING.md names is there.
func TestContributing(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	if files := namedFiles(t, string(page)); files < 20 {
		t.Errorf("CONTRIBUTING.md names %d files", files)
	}
}

func exitRows() string {
	rows := "| code | meaning |\n|---|---|\n"
	for _, e := range exitMeanings() {
		rows += fmt.Sprintf("| %d | %s |\n", e.code, e.meaning)
	}
	return rows
}

// commandsPage is docs/commands.md: what --help says of every command that is not hidden.
func commandsPage() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# All commands\n\n<!-- made by: %s -->\n\n", regenerate)
	b.WriteString("The help of every command, and what scripts can rely on. [README.md](README.md) lists the pages by subject. Some\n" +
		"flags, such as --env, --output and --base, have another meaning in another command.\n\n")
	b.WriteString("## Exit codes\n\n" + exitRows() + "\n" + exitNotes)
	b.WriteString("## JSON documents\n\n" + schemaNotes + schemaRows() + "\n")
	b.WriteString("## Variables\n\n" + siteNotes + "`" + strings.Join(siteVariables(), "`, `") + "`\n\n" + variables + "\n")
	b.WriteString("## Files\n\n" + ownFiles() + "\n")
	root := newRootCommand(&app{})
	for _, g := range groupedFlags(root) {
		b.WriteString("## Global flags\n\nEvery command has them; -V is for `dsbuild` alone.\n\n" + flagTable(g))
	}
	for _, cmd := range root.Commands() {
		writeCommand(&b, cmd)
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

const exitNotes = "`launch --submit` exits with 0 or 1; the job's own code is in its last line and in the JSON. After the first Ctrl-C or\n" +
	"SIGTERM a command cleans up, the second ends it immediately; both are 130. An empty value of a flag is 2, so an unset shell\n" +
	"variable never selects everything.\n\n"

const schemaNotes = "With `--json` a command prints exactly one document on standard output. Each document has a JSON Schema (draft 2020-12) in\n" +
	"[schema](schema): required fields always exist, and there are no other fields than the schema's. Schemas refer to each other\n" +
	"by file name, so pass the whole directory to a validator.\n" +
	"[inventory/schema.json](../inventory/schema.json) is the schema of an inventory.\n\n"

const siteNotes = "Some flags take their default from an environment variable, such as `DSBUILD_FORKS` for `--forks`. A flag overrides its\n" +
	"variable. A flag without effect is an error, but such a variable is ignored: `DSBUILD_PARTITION` without `--via slurm`.\n" +
	"Boolean variables are 1 or true. `DSBUILD_SALLOC` can have several options, separated by white space. An empty variable is\n" +
	"ignored, and an invalid one is exit code 2. The variables:\n"

// siteVariables are the variables of flags.
func siteVariables() (names []string) {
	root := newRootCommand(&app{})
	for _, cmd := range append(allCommands(root), root) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Annotations[siteRule]...) })
	}
	slices.Sort(names)
	return slices.Compact(names)
}

const variables = "| variable | means |\n|---|---|\n" +
	"| `DSBUILD_TORCH_INDEX`, `DSBUILD_APT_MIRROR`; variables of proxies, certificates and package indexes | where files come from ([Build wheels](build.md#mirrors-and-proxies)) |\n" +
	"| `SSH_AUTH_SOCK`, `SSH_ASKPASS`, `SSH_ASKPASS_REQUIRE` | keys and prompts at login, as in ssh ([Inventories and connections](nodes.md#connect-with-ssh)) |\n" +
	"| `XDG_CACHE_HOME`, `XDG_STATE_HOME` | directories to use instead of `~/.cache` and `~/.local/state` |\n" +
	"| `NO_COLOR` | no colors |\n" +
	"| `COLUMNS` | width of tables without a terminal (default: a line per row) |\n"

// ownFiles is the table of the files that dsbuild keeps.
func ownFiles() string {
	return "On a Linux control node:\n\n| directory | content |\n|---|---|\n" +
		"| `~/.cache/dsbuild/wheels` | finished wheels, by plan digest |\n" +
		"| `~/.cache/dsbuild/sums` | hashes of environments' wheels, and what they need on a node |\n" +
		"| `~/.cache/dsbuild/env`, `~/.cache/dsbuild/pip` | wheels of environments; pip for nodes without one |\n" +
		"| `~/.cache/dsbuild/host` | environments and objects of `--builder host` |\n" +
		"| `~/.local/state/dsbuild/logs` | logs of builds, and of nodes that failed |\n" +
		"| `~/.local/state/dsbuild/jobs` | logs of the last jobs |\n" +
		"| `~/.local/state/dsbuild/engine` | state of dsbuild's own engine |\n" +
		"| container `dagger-engine-" + engine.Version + "` | the engine that Dagger starts in docker, podman or nerdctl; dsbuild does not remove it |\n\n" +
		"On a node, in the directory `.dsbuild` in `site-packages`:\n\n| file | content |\n|---|---|\n" +
		"| `installed.json`, `signed/` | record of the wheel that dsbuild installed, and its signatures |\n" +
		"| `previous/` | the version before it |\n" +
		"| `bytecode.xz` | the byte code that came with the wheel |\n" +
		"| `journal.jsonl` | a line for each change: who, when, what |\n" +
		"| `change.json`, `kept-…/` | a change in progress; after an interruption, the next run undoes it |\n" +
		"| `foreign-…/` | files of other tools that a deploy replaced; never removed |\n" +
		"| `inbox/`, `run-…/`, `lock` | uploads, temporary files, the lock |\n\n" +
		"On a node, in `dsbuild/env` below `~/.local/share` or `folder` of the environment file: `NAME/DIGEST/` is an environment,\n" +
		"`NAME/current` and `NAME/previous` are links, `NAME/journal.jsonl` lists the changes ([Complete environments](environments.md)).\n"
}

func writeCommand(b *strings.Builder, cmd *cobra.Command) {
	if cmd.Hidden || cmd.Name() == "help" {
		return
	}
	fmt.Fprintf(b, "%s %s\n\n", strings.Repeat("#", strings.Count(cmd.CommandPath(), " ")+1), cmd.CommandPath())
	about := cmd.Long
	if about == "" {
		about = cmd.Short + "."
	}
	fmt.Fprintf(b, "<!-- text: help -->\n```\n%s\n\n%s\n```\n\n", cmd.UseLine(), strings.TrimSpace(about))
	if cmd.HasExample() {
		example := outdent(cmd.Example)
		b.WriteString("<!-- parse: examples of the help; the pages have those that are executed -->\n")
		nth := 0 // among the commands
		for line := range strings.SplitSeq(example, "\n") {
			if line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, " ") { // the rest of a command
				continue
			}
			if nth++; !strings.Contains(line, "dsbuild ") {
				fmt.Fprintf(b, "<!-- not run %d: the program of others -->\n", nth)
			}
		}
		fmt.Fprintf(b, "```sh\n%s\n```\n\n", example)
	}
	for _, g := range groupedFlags(cmd) {
		if g.heading != groupGlobal {
			b.WriteString(flagTable(g))
		}
	}
	if text := cmd.Annotations[helpSeeAlso]; text != "" {
		fmt.Fprintf(b, "See also: %s\n\n", regexp.MustCompile(`"(dsbuild [^"]*)"`).ReplaceAllString(text, "`$1`"))
	}
	for _, sub := range cmd.Commands() {
		if cmd.Name() != "completion" { // a shell each, with much about that shell
			writeCommand(b, sub)
		}
	}
}

// flagTable is a group of flags with its heading.
func flagTable(g flagGroup) string {
	var rows strings.Builder
	for _, f := range g.flags {
		name, usage := flagHelp(f)
		fmt.Fprintf(&rows, "| `%s` | %s |\n", cell(name), strings.ReplaceAll(cell(usage), "<", "&lt;"))
	}
	return fmt.Sprintf("| %s | |\n|---|---|\n%s\n", g.heading, &rows)
}

// outdent takes away the two blanks that cobra's examples begin with, and the prompts.
func outdent(text string) string {
	lines := strings.Split(strings.Trim(text, "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(strings.TrimPrefix(line, "  "), "$ ")
	}
	return strings.Join(lines, "\n")
}

// tablesPage is docs/tables.md: what the commands that list what dsbuild knows print.
func tablesPage(t *testing.T) string {
	t.Helper()
	t.Setenv("COLUMNS", "80") // as for the commands of all pages
	var b strings.Builder
	fmt.Fprintf(&b, "# The tables\n\n<!-- made by: %s -->\n\n", regenerate)
	b.WriteString("GPUs, ops, toolchains, lint rules and signs of failure, as the program knows them. `--json` prints the first four for programs.\n" +
		"See also [Toolchains and compatibility](toolchains.md), [Launch jobs](launch.md#lint-scripts) and [Troubleshooting](troubleshooting.md).\n\n")
	for _, name := range []string{"gpus", "ops", "toolchains", "launch lint --rules"} {
		var out, stderr bytes.Buffer
		if code := run(t.Context(), strings.Fields(name), strings.NewReader(""), &out, &stderr); code != 0 {
			t.Fatalf("dsbuild %s: exit %d: %s", name, code, &stderr)
		}
		fmt.Fprintf(&b, "## dsbuild %s\n\n```console\n$ dsbuild %s\n%s```\n\n", name, name, &out)
	}
	b.WriteString("## Signs of failure\n\n`dsbuild why` and `dsbuild launch --submit` look for these signs. Marked signs are not causes by themselves: *end* (killed by a\n" +
		"signal), *peer* (the network, or another rank), *follow* (reports another process's failure).\n\n" +
		"| sign | example | cause | what to do |\n|---|---|---|---|\n")
	for _, s := range why.Signs() {
		name, line, do := "`"+s.ID+"` "+s.Title, "", s.Hint
		if s.Class != why.Cause {
			name += " (*" + string(s.Class) + "*)"
		}
		if len(s.Lines) > 0 {
			line = "`" + strings.ReplaceAll(cell(ui.Shorten(s.Lines[0], 100)), "`", "'") + "`"
		}
		if s.Prevent != "" {
			do += "; `" + s.Prevent + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, line, cell(s.Why), cell(do))
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// cell is a text as it stands in a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// The help fits a terminal of 80 columns, besides its examples.
func TestHelpFits(t *testing.T) {
	root := newRootCommand(&app{})
	for _, name := range []string{"check", "verify", "verify-wheel", "inspect", "ship", "env", "deploy"} {
		if cmd, _, err := root.Find([]string{name}); err != nil || cmd.Annotations[helpSeeAlso] == "" {
			t.Errorf("%s: nothing tells it from commands with a name like it (%v)", name, err)
		}
	}
	for _, cmd := range append(allCommands(root), root) {
		if cmd.HasParent() && cmd.Parent().Name() == "completion" {
			continue // the text of cobra
		}
		for line := range strings.SplitSeq(helpText(cmd), "\n") {
			if utf8.RuneCountInString(line) > helpWidth {
				t.Errorf("%s: wider than %d columns: %s", cmd.CommandPath(), helpWidth, line)
			}
		}
		groups := groupedFlags(cmd)
		if grouped := slices.ContainsFunc(groups, func(g flagGroup) bool { return g.heading == groupOutput }); grouped &&
			groups[0].heading == groupOther {
			t.Errorf("%s: flags without a group: %v", cmd.CommandPath(), flagLines(groups[0].flags))
		}
	}
}

// The help names the value of each flag: no flag has the word of its Go type there. It has a heading for each flag.
func TestPlaceholders(t *testing.T) {
	headings := flagGroups()
	root := newRootCommand(&app{})
	for _, cmd := range append(allCommands(root), root) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			for _, heading := range f.Annotations[groupRule] {
				if !slices.Contains(headings, heading) {
					t.Errorf("%s --%s: flagGroups has no heading %q", cmd.CommandPath(), f.Name, heading)
				}
			}
			if name, _ := pflag.UnquoteUsage(f); !f.Hidden && f.Value.Type() != "bool" && name == strings.ToLower(name) && !strings.Contains(name, "|") {
				t.Errorf("%s --%s %s", cmd.CommandPath(), f.Name, name)
			}
		})
	}
}
