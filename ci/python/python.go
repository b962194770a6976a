// Package python finds interpreters on this machine and makes environments
// with uv, whose cache all of them share.
package python

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Find finds an interpreter of the wanted major.minor version on this machine,
// the system's own first: version managers put shims on PATH that depend on
// the folder they are called from.
func Find(ctx context.Context, version string) (string, error) {
	var tried []string
	for _, c := range []string{"/usr/bin/python" + version, "/usr/bin/python3", "/usr/local/bin/python" + version, "python" + version, "python3"} {
		p, err := exec.LookPath(c)
		if err != nil {
			continue
		}
		cmd := exec.CommandContext(ctx, p, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)")
		out, err := cmd.Output()
		if err != nil {
			tried = append(tried, p+" does not run")
			continue
		}
		have, real, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
		if have == version && real != "" {
			return real, nil
		}
		tried = append(tried, p+" is "+have)
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	return "", fmt.Errorf("no Python %s here (%s): install python%s", version, strings.Join(tried, ", "), version)
}

// Run runs a program; its error ends with what the program said last.
func Run(ctx context.Context, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(out) > 2000 {
		out = out[len(out)-2000:]
	}
	return errors.Join(fmt.Errorf("%s %s: %w", filepath.Base(name), strings.Join(args, " "), err), errors.New(strings.TrimSpace(string(out))))
}
