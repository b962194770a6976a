// Package python finds interpreters on this machine and makes environments with uv, which share
// uv's cache.
package python

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/child"
)

// Find finds an interpreter of this major.minor version on this machine, the system's own first.
// Version managers put shims on PATH that depend on the current folder, or run nothing. So Find
// looks for pyenv's interpreters last, in pyenv's own folder.
func Find(ctx context.Context, version string) (string, error) {
	var tried []string
	candidates := []string{"/usr/bin/python" + version, "/usr/bin/python3", "/usr/local/bin/python" + version, "python" + version, "python3"}
	for _, c := range append(candidates, pyenvInterpreters(version)...) {
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

// pyenvInterpreters lists pyenv's interpreters of a version.
func pyenvInterpreters(version string) []string {
	root := os.Getenv("PYENV_ROOT")
	if root == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil
		}
		root = filepath.Join(home, ".pyenv")
	}
	found, _ := filepath.Glob(filepath.Join(root, "versions", version+".*", "bin", "python")) // a bad pattern finds none
	return found
}

// systemCertificates are the bundles of Debian's and Red Hat's families.
func systemCertificates() []string {
	return []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"}
}

// certificateVariables returns the variables that make uv and pip trust the machine's
// certificates, as the build's own scripts do. Otherwise both use the certificates that they
// bring along.
func certificateVariables(getenv func(string) string, bundles []string) []string {
	file := getenv("SSL_CERT_FILE")
	for i := 0; file == "" && i < len(bundles); i++ {
		if _, err := os.Stat(bundles[i]); err == nil {
			file = bundles[i]
		}
	}
	if file == "" {
		return nil
	}
	variables := []string{"SSL_CERT_FILE=" + file}
	if getenv("PIP_CERT") == "" {
		variables = append(variables, "PIP_CERT="+file)
	}
	return variables
}

// Run runs a program. Its error has the last lines of the program's output.
func Run(ctx context.Context, env []string, name string, args ...string) error {
	return runWithLines(ctx, env, func(string) {}, name, args...)
}

// runWithLines is Run, and also calls line with each line of output.
func runWithLines(ctx context.Context, env []string, line func(string), name string, args ...string) error {
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	// A user's pip.conf may require an active environment.
	cmd.Env = slices.Concat(os.Environ(), []string{"PIP_REQUIRE_VIRTUALENV=0"}, certificateVariables(os.Getenv, systemCertificates()), env)
	cmd.WaitDelay = time.Minute
	out := io.MultiWriter(&said, child.NewLines(line))
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	last := said.Bytes()
	last = last[max(0, len(last)-2000):]
	return errors.Join(fmt.Errorf("%s %s: %w", filepath.Base(name), strings.Join(args, " "), err), errors.New(strings.TrimSpace(string(last))))
}
