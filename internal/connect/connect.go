// Package connect reaches the nodes of an inventory. It turns an inventory host into a connection
// target and a runner.
package connect

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// Target returns the connection target of a host. If knownHosts is empty, the user's known_hosts
// file is used.
func Target(h inventory.Host, knownHosts string) (remote.Target, error) {
	jump, err := remote.ParseJump(h.ProxyJump)
	if err != nil {
		return remote.Target{}, err
	}
	t := remote.Target{
		Name: h.Name, Node: h.Node, Address: h.Address, Port: h.Port, User: h.User, Sudo: h.Sudo,
		Jump: jump, SSHArgs: h.SSHArgs,
	}
	if h.IdentityFile != "" {
		t.IdentityFiles = []string{h.IdentityFile}
	}
	if knownHosts != "" {
		t.KnownHosts = []string{knownHosts}
		for i := range t.Jump {
			t.Jump[i].KnownHosts = t.KnownHosts
		}
	}
	return t, nil
}

// Runner runs commands on a host with the inventory's variables, setup line and exec_prefix. If the
// setup line fails, Run returns an error that names it.
func Runner(r remote.Runner, h inventory.Host) remote.Runner { return runner{r, h} }

type runner struct {
	remote.Runner
	host inventory.Host
}

// readVariables is a shell script. It reads variables from standard input, after remote.EndShell and up to the line $1,
// sets them, and execs the program in the remaining arguments. The variables are not arguments, because every user of
// the node can see those.
const readVariables = `read -r line; read -r line; read -r line
all=
while IFS= read -r line && [ "$line" != "$1" ]; do
	all="$all$line
"
done
if [ "$line" != "$1" ]; then
	echo "variables of the inventory not received: check whether exec_prefix or the setup line reads standard input" >&2
	exit 125
fi
eval "$all"
shift
exec "$@"`

// Run implements remote.Runner.
func (h runner) Run(ctx context.Context, cmd remote.Command) error {
	cmd.Setup = h.host.Setup
	if len(h.host.ExecPrefix) > 0 && len(cmd.Env) > 0 {
		// env runs inside the container, because some container runtimes do not pass outside
		// variables on.
		inner := []string{"env"}
		for _, k := range slices.Sorted(maps.Keys(cmd.Env)) {
			inner = append(inner, k+"="+cmd.Env[k])
		}
		cmd.Argv, cmd.Env = append(inner, cmd.Argv...), nil
	}
	if len(h.host.Env) > 0 {
		env := maps.Clone(h.host.Env)
		maps.Copy(env, cmd.Env) // the command's own variables win
		lines, err := remote.Exports(env)
		if err != nil {
			return err
		}
		end := "end of variables " + rand.Text()
		cmd.Argv, cmd.Env = append([]string{"sh", "-c", readVariables, "sh", end}, cmd.Argv...), nil
		var stdin io.Reader = strings.NewReader(remote.EndShell + lines + end + "\n")
		if cmd.Stdin != nil {
			stdin = io.MultiReader(stdin, cmd.Stdin)
		}
		cmd.Stdin, cmd.EnvNames = stdin, slices.Sorted(maps.Keys(env))
	}
	cmd.Argv = slices.Concat(h.host.ExecPrefix, cmd.Argv)
	if h.host.Setup == "" {
		return h.Runner.Run(ctx, cmd)
	}
	said := &setupWatch{to: cmd.Stderr}
	cmd.Stderr = said
	err := h.Runner.Run(ctx, cmd)
	if failed := said.failure(h.host); failed != nil && errors.As(err, new(*remote.ExitError)) {
		return failed
	}
	return err
}

// setupWatch forwards a command's stderr and keeps its beginning, in which the node reports a failed
// setup line.
type setupWatch struct {
	to   io.Writer // nil discards the output
	kept []byte
}

// setupMost limits the kept bytes.
const setupMost = 16 << 10

// Write implements io.Writer.
func (w *setupWatch) Write(p []byte) (int, error) {
	w.kept = append(w.kept, p[:min(len(p), setupMost-len(w.kept))]...)
	if w.to == nil {
		return len(p), nil
	}
	return w.to.Write(p)
}

// failure returns the error of a host's setup line, if it failed.
func (w *setupWatch) failure(h inventory.Host) error {
	before, status, found := strings.Cut(ui.Clean(string(w.kept)), remote.SetupFailed)
	if !found {
		return nil
	}
	status, _, _ = strings.Cut(status, "\n")
	lines := strings.Split(strings.TrimSpace(before), "\n")
	why := strings.TrimSpace(lines[len(lines)-1])
	if why != "" {
		why = ": " + ui.Shorten(why, maxSaid)
	}
	err := fmt.Errorf("setup line %q exited with status %s%s",
		ui.Shorten(HideValues(h.Setup), maxSaid), ui.Shorten(strings.TrimSpace(status), 10), why)
	return fault.WithHint(err,
		"run the setup line (%s) on %s in a non-interactive shell: sh -c 'LINE'", h.Position, h.Node)
}

// maxSaid limits the bytes of a node's text that an error message quotes.
const maxSaid = 200

// WithEnv sets variables for every command of a Runner. The command's own variables win.
func WithEnv(r remote.Runner, env map[string]string) remote.Runner { return envRunner{r, env} }

type envRunner struct {
	remote.Runner
	env map[string]string
}

// Run implements remote.Runner.
func (r envRunner) Run(ctx context.Context, cmd remote.Command) error {
	env := map[string]string{}
	maps.Copy(env, r.env)
	maps.Copy(env, cmd.Env)
	cmd.Env = env
	return r.Runner.Run(ctx, cmd)
}
