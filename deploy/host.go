package deploy

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/inventory"
)

// target is how to reach a host.
func target(h inventory.Host, knownHosts string) (remote.Target, error) {
	jump, err := remote.ParseJump(h.ProxyJump)
	if err != nil {
		return remote.Target{}, err
	}
	t := remote.Target{Name: h.Name, Address: h.Address, Port: h.Port, User: h.User, Jump: jump}
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

// hostRunner runs commands as the inventory says for a host: with its
// variables, after its setup line, behind its prefix.
type hostRunner struct {
	remote.Runner
	host inventory.Host
}

// Run implements remote.Runner.
func (h hostRunner) Run(ctx context.Context, cmd remote.Command) error {
	env := maps.Clone(h.host.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, cmd.Env)
	cmd.Env, cmd.Setup = env, h.host.Setup
	if len(h.host.ExecPrefix) > 0 {
		// Inside the container: not every one passes on what is set outside.
		inner := []string{"env"}
		for _, k := range slices.Sorted(maps.Keys(env)) {
			inner = append(inner, k+"="+env[k])
		}
		cmd.Argv = slices.Concat(h.host.ExecPrefix, inner, cmd.Argv)
		cmd.Env = nil
	}
	return h.Runner.Run(ctx, cmd)
}

// label is a node's name as part of a file name.
func label(name string) string {
	s := strings.Map(func(r rune) rune {
		if r == '-' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, name)
	return s[:min(len(s), 64)]
}
