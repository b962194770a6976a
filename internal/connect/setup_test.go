package connect_test

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/connect"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/inventory"
)

// exiting is a runner whose commands end as those of a connection do.
type exiting struct{ here }

func (e *exiting) Run(ctx context.Context, cmd remote.Command) error {
	err := e.here.Run(ctx, cmd)
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return &remote.ExitError{Code: ended.ExitCode()}
	}
	return err
}

// A setup line that fails is named with its place and the node's last word, and without the values
// that it sets; the program does not run.
func TestSetupLineThatFails(t *testing.T) {
	t.Parallel()
	host := inventory.Host{Name: "gpu1/train", Node: "gpu1", Position: "nodes.yaml:3:5"}
	for line, want := range map[string]string{
		"export TOKEN=s3cret-word; false":                `setup line "export TOKEN=[…]; false" exited with status 1`,
		"echo some; echo 'no module\x1b[31m' >&2; false": `exited with status 1: no module`,
		"API_KEY='two s3cret words' ; (exit 7)":          `setup line "API_KEY=[…] ; (exit 7)" exited with status 7`,
		"no-such-command-here --a=b":                     `exited with status 127: `,
	} {
		host.Setup = line
		var out, errs bytes.Buffer
		err := connect.Runner(&exiting{}, host).Run(t.Context(), remote.Command{Argv: []string{"echo", "it runs"}, Stdout: &out, Stderr: &errs})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "\x1b") || strings.Contains(out.String(), "it runs") {
			t.Errorf("%s: %v\nwant %s; output %q", line, err, want, out.String())
		}
		if try := fault.Hint(err); !strings.Contains(try, "run the setup line (nodes.yaml:3:5) on gpu1 in a non-interactive shell") {
			t.Errorf("%s: hint %q", line, try)
		}
	}
}

// The failure of the program itself is no failure of the setup line; what it says is passed on.
func TestProgramFailsAfterSetup(t *testing.T) {
	t.Parallel()
	host := inventory.Host{Name: "gpu1", Setup: "export A=1"}
	var errs bytes.Buffer
	err := connect.Runner(&exiting{}, host).Run(t.Context(), remote.Command{Argv: []string{"sh", "-c", "head -c 40000 /dev/zero | tr '\\0' x >&2; exit 3"}, Stderr: &errs})
	var ended *remote.ExitError
	if !errors.As(err, &ended) || ended.Code != 3 || errs.Len() != 40_000 {
		t.Errorf("%v, %d bytes", err, errs.Len())
	}
	if err := connect.Runner(&exiting{}, host).Run(t.Context(), remote.Command{Argv: []string{"true"}}); err != nil {
		t.Error(err)
	}
}

func TestAssigned(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		hidden string
		all    [][2]string
	}{
		"module load cuda":                     {"module load cuda", nil},
		"export A=one B='two words' C=\"3 4\"": {"export A=[…] B=[…] C=[…]", [][2]string{{"A", "one"}, {"B", "two words"}, {"C", "3 4"}}},
		"A=1;B=2&&x":                           {"A=[…];B=[…]&&x", [][2]string{{"A", "1"}, {"B", "2"}}},
		"--env=NGC=nvapi-1":                    {"--env=[…]", [][2]string{{"env", "NGC=nvapi-1"}, {"NGC", "nvapi-1"}}},
		"A= B":                                 {"A= B", nil},
		`A='it'\''s' B=x"y z"w C=a\ b`:         {"A=[…] B=[…] C=[…]", [][2]string{{"A", "it's"}, {"B", "xy zw"}, {"C", "a b"}}},
		`export A="never ends`:                 {"export A=[…]", [][2]string{{"A", "never ends"}}},
		"PATH=/a:$PATH":                        {"PATH=[…]", [][2]string{{"PATH", "/a:$PATH"}}},
	} {
		if got := connect.HideValues(text); got != want.hidden {
			t.Errorf("%s: %s", text, got)
		}
		if got := connect.Assigned(text); !slices.Equal(got, want.all) {
			t.Errorf("%s: %q", text, got)
		}
	}
}

// A target has what the inventory says, its jump hosts too; a jump host that cannot be read is an
// error.
func TestTarget(t *testing.T) {
	t.Parallel()
	h := inventory.Host{Name: "gpu1/train", Node: "gpu1", Address: "10.0.0.1", Port: 2222, User: "train", IdentityFile: "/keys/id", ProxyJump: "admin@head:2200,inner", Sudo: "root"}
	got, err := connect.Target(h, "/known")
	if err != nil || got.Name != "gpu1/train" || got.Node != "gpu1" || got.Address != "10.0.0.1" || got.Port != 2222 || got.User != "train" || got.Sudo != "root" || !slices.Equal(got.IdentityFiles, []string{"/keys/id"}) {
		t.Fatalf("%+v, %v", got, err)
	}
	if len(got.Jump) != 2 || got.Jump[0].User != "admin" || got.Jump[0].Port != 2200 || !slices.Equal(got.Jump[1].KnownHosts, []string{"/known"}) || !slices.Equal(got.KnownHosts, []string{"/known"}) {
		t.Errorf("%+v", got.Jump)
	}
	if plain, err := connect.Target(inventory.Host{Name: "a"}, ""); err != nil || len(plain.KnownHosts)+len(plain.IdentityFiles)+len(plain.Jump) != 0 {
		t.Errorf("%+v, %v", plain, err)
	}
	h.ProxyJump = "head:notaport"
	if _, err := connect.Target(h, ""); err == nil {
		t.Error("a jump host without a port that is a number")
	}
}
