package main

import (
	"bytes"
	"strings"
	"testing"
)

// Where there is no Slurm, that is said with what to try, whatever needs it.
func TestNoSlurmHere(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, args := range [][]string{
		{"nodes", "slurm:"},
		{"verify", "slurm:gpu"},
		{"verify", "gpu[1-2]", "--via", "slurm"},
		{"rollback", "gpu[1-2]", "--via", "slurm", "--partition", "gpu"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), args, strings.NewReader(""), &stdout, &stderr)
		if code != exitUsage || stdout.Len() > 0 || !strings.Contains(stderr.String(), "sinfo not found on PATH") || !strings.Contains(stderr.String(), "hint: run dsbuild on a login node") {
			t.Errorf("%q: exit %d\n%s%s", args, code, &stdout, &stderr)
		}
	}
}
