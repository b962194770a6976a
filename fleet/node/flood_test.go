package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// flood is a node that says something for ever, until it is cut off.
type flood func(cmd remote.Command, mark string) (io.Writer, string)

func (f flood) Run(ctx context.Context, cmd remote.Command) error {
	mark := ""
	if s, err := io.ReadAll(cmd.Stdin); err == nil {
		_, rest, _ := strings.Cut(string(s), `{"mark":"`)
		mark, _, _ = strings.Cut(rest, `"`)
	}
	to, text := f(cmd, mark)
	for ctx.Err() == nil {
		if _, err := io.WriteString(to, text); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// A node that floods is cut off when the bound is passed, on both streams, by lines and
// without, with marks and without; so is one that says what is not understood.
func TestFloodIsCutOff(t *testing.T) {
	block := strings.Repeat("x", 1<<16)
	for name, c := range map[string]struct {
		node flood
		want error
	}{
		"stdout, one line": {func(c remote.Command, _ string) (io.Writer, string) { return c.Stdout, block }, remote.ErrFlood},
		"stdout, lines":    {func(c remote.Command, _ string) (io.Writer, string) { return c.Stdout, block + "\n" }, remote.ErrFlood},
		"stdout, messages": {func(c remote.Command, mark string) (io.Writer, string) {
			return c.Stdout, mark + `{"a":"` + block + "\"}\n"
		}, remote.ErrFlood},
		"stdout, no messages": {func(c remote.Command, mark string) (io.Writer, string) { return c.Stdout, mark + "nonsense\n" }, errNonsense},
		"stderr":              {func(c remote.Command, _ string) (io.Writer, string) { return c.Stderr, block }, remote.ErrFlood},
		"stderr, empty lines": {func(c remote.Command, _ string) (io.Writer, string) { return c.Stderr, strings.Repeat("\n", 1<<16) }, remote.ErrFlood},
	} {
		t.Run(name, func(t *testing.T) {
			script := node.Script{Python: "python3", Program: programOf("pass"), Request: map[string]any{}}
			err := script.Run(t.Context(), c.node, func(m json.RawMessage) error {
				if !json.Valid(m) {
					return errNonsense
				}
				return nil
			})
			if !errors.Is(err, c.want) {
				t.Errorf("the script: %v, want %v", err, c.want)
			}
			if strings.Contains(name, "message") {
				return
			}
			if _, err := node.Probe(t.Context(), c.node, node.ProbeOptions{}); !errors.Is(err, remote.ErrFlood) {
				t.Errorf("the probe: %v", err)
			}
		})
	}
}

// The output of a job has no limit; what else comes beside it has.
func TestEndlessMessages(t *testing.T) {
	const enough = 24 << 20
	for name, text := range map[string]string{"large": strings.Repeat("x", 1<<16), "small": ""} {
		t.Run(name, func(t *testing.T) {
			script := node.Script{Python: "python3", Program: programOf("pass"), Request: map[string]any{}, Endless: true}
			seen, errEnough := 0, errors.New("that is enough")
			count := func(m json.RawMessage) error {
				if seen += len(m) + 1; seen > enough {
					return errEnough
				}
				return nil
			}
			messages := flood(func(c remote.Command, mark string) (io.Writer, string) {
				return c.Stdout, strings.Repeat("\n"+mark+`{"a":"`+text+"\"}\n", 100)
			})
			if err := script.Run(t.Context(), messages, count); !errors.Is(err, errEnough) {
				t.Errorf("messages alone: %v", err)
			}
			seen = 0
			mixed := flood(func(c remote.Command, mark string) (io.Writer, string) {
				return c.Stdout, "\n" + mark + "{}\n" + strings.Repeat("y", 1<<16) + "\n"
			})
			if err := script.Run(t.Context(), mixed, count); !errors.Is(err, remote.ErrFlood) {
				t.Errorf("with noise: %v", err)
			}
		})
	}
}

var errNonsense = errors.New("that is no message")
