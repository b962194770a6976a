package connect_test

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/connect"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/inventory"
)

// here runs commands on this machine, and records their command lines.
type here struct{ lines []string }

func (h *here) Run(ctx context.Context, cmd remote.Command) error {
	line, err := remote.CommandLine(cmd)
	if err != nil {
		return err
	}
	h.lines = append(h.lines, line)
	c := exec.CommandContext(ctx, "/bin/sh", "-c", line)
	c.Stdin, c.Stdout, c.Stderr = cmd.Stdin, cmd.Stdout, cmd.Stderr
	return c.Run()
}

// No command line has the values of the inventory's variables, with a prefix or without. The
// values arrive unchanged, and so does the program's input.
func TestVariablesAreNotInCommandLines(t *testing.T) {
	const value = "  a 'secret' with \"quotes\", $HOME, `id`, \\n and\n\nlines\n"
	const input = "its input\n\x00\xff and the rest"
	for name, prefix := range map[string][]string{"no prefix": nil, "a prefix": {"env", "-u", "NOTHING"}} {
		on := &here{}
		r := connect.WithEnv(connect.Runner(on, inventory.Host{
			Name: "gpu1", Env: map[string]string{"TOKEN": value, "OWN": "the inventory's", "line": "a name that the shell uses"},
			Setup: "SET=1; export SET", ExecPrefix: prefix,
		}), map[string]string{"OWN": "the command's"})
		var out, errs bytes.Buffer
		err := r.Run(t.Context(), remote.Command{
			Argv: []string{"sh", "-c", `printf '%s|%s|%s|%s|' "$TOKEN" "$OWN" "$SET" "$line"; cat`}, Stdin: strings.NewReader(input), Stdout: &out, Stderr: &errs,
		})
		if want := value + "|the command's|1|a name that the shell uses|" + input; err != nil || out.String() != want {
			t.Errorf("%s: %v, %q, %q; want %q", name, err, out.String(), errs.String(), want)
		}
		for _, line := range on.lines {
			if strings.Contains(line, "secret") {
				t.Errorf("%s: the command line has a value: %s", name, line)
			}
		}
	}
}

// If a prefix consumes standard input, the error says so, and nothing runs without the
// variables.
func TestVariablesThatDoNotArrive(t *testing.T) {
	r := connect.Runner(&here{}, inventory.Host{Name: "gpu1", Env: map[string]string{"TOKEN": "x"}, ExecPrefix: []string{"sh", "-c", `exec "$@" </dev/null`, "sh"}})
	var out, errs bytes.Buffer
	err := r.Run(t.Context(), remote.Command{Argv: []string{"echo", "it runs"}, Stdout: &out, Stderr: &errs})
	if err == nil || out.Len() > 0 || !strings.Contains(errs.String(), "not received") {
		t.Errorf("%v, %q, %q", err, out.String(), errs.String())
	}
}
