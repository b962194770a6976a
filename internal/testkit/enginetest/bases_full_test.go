//go:build full && linux

package enginetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/pipeline/engine"
	"github.com/dsbuild/dsbuild/wheel"
)

// suites are the suites with bases, and the Pythons that each must have.
func suites() map[string][]string {
	return map[string][]string{
		"bullseye": {"3.9"},
		"bookworm": {"3.11"},
		"trixie":   {"3.13"},
		"jammy":    {"3.10"},
		"noble":    {"3.12"},
	}
}

// Each base runs in the engine: its Pythons make environments and have their
// headers, and its package sources can be read.
func TestFullToolchainsBases(t *testing.T) {
	own := Own(t)
	c := client(t, own)
	bases := &engine.Bases{Home: own.Home, Root: true, Note: t.Logf}
	for suite, pythons := range suites() {
		t.Run(suite, func(t *testing.T) {
			tar, err := bases.Get(t.Context(), suite)
			if err != nil {
				t.Fatal(err)
			}
			script := `set -e; . /etc/os-release; echo "$VERSION_CODENAME"; apt-get update -qq >&2; apt-cache policy gcc >&2`
			for _, v := range pythons {
				script += "; python" + v + ` -c 'import sys, sysconfig, os; print("%d.%d" % sys.version_info[:2]); os.stat(sysconfig.get_path("include") + "/Python.h")'`
				script += "; python" + v + " -m venv /tmp/" + v + "; /tmp/" + v + "/bin/pip --version >&2"
			}
			want := strings.Join(append([]string{suite}, pythons...), "\n")
			if out := run(t, fromTar(c, tar), script); out != want {
				t.Errorf("%q, want %q", out, want)
			}
		})
	}
}

// The same inputs make the same bytes, for Debian, an old Python and Ubuntu.
func TestFullToolchainsBasesSteady(t *testing.T) {
	own := Own(t)
	for _, suite := range []string{"bullseye", "noble"} {
		t.Run(suite, func(t *testing.T) {
			if one, two := made(t, own, suite), made(t, own, suite); one != two {
				t.Errorf("sha256 %s, then %s", one, two)
			}
		})
	}
}

// made makes a base in a directory of its own and returns its sha256.
func made(t *testing.T, e Engine, suite string) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(e.Home, "bin", "enginectl"), "base", suite)
	cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+dir)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	tar := strings.TrimSpace(string(out))
	sum, _, err := wheel.HashFile(tar)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}
