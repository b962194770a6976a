package main

import (
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/launch/crew"
)

// TestTroubleshootingCommands: what the page tells people to type is there, with
// its flags, and each sign that dsbuild itself knows has its heading.
func TestTroubleshootingCommands(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile("(?m)`dsbuild ([^`]+)`|^    dsbuild ([^#\n]+)").FindAllStringSubmatch(string(page), -1)
	if len(commands) < 20 {
		t.Errorf("%d commands: are they written in another way now?", len(commands))
	}
	for _, c := range commands {
		words, err := shellWords(strings.Replace(c[1]+c[2], "…", "", 1))
		if err != nil {
			t.Fatal(err)
		}
		a := &app{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard, reporter: ui.New(io.Discard, ui.Options{})}
		cmd, rest, err := newRootCommand(a).Find(words)
		if err != nil || !cmd.Runnable() || cmd == cmd.Root() {
			t.Errorf("dsbuild %s: there is no such command: %v", c[1]+c[2], err)
			continue
		}
		// What all kinds of job have in common is said of none: "dsbuild launch --submit".
		if cmd.Name() == "launch" {
			cmd, _, _ = cmd.Find([]string{"torchrun"}) //nolint:errcheck // its flags are looked at below
		}
		if err := cmd.ParseFlags(rest); err != nil {
			t.Errorf("dsbuild %s: %v", c[1]+c[2], err)
		}
	}
	for _, s := range crew.Symptoms() {
		if !strings.Contains(string(page), "\n## "+s.Name+"\n") {
			t.Errorf("nothing is said of %q", s.Name)
		}
	}
}
