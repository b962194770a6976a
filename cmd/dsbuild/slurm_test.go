package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
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
		if code != exitUsage || stdout.Len() > 0 || !strings.Contains(stderr.String(), "this machine has no sinfo") || !strings.Contains(stderr.String(), "hint: run this on a login node") {
			t.Errorf("%q: exit %d\n%s%s", args, code, &stdout, &stderr)
		}
	}
}

// What an inventory says about SSH is noted once for the nodes that have it.
func TestNoteUnused(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	a := &app{reporter: ui.New(&said, ui.Options{})}
	a.noteUnused(&inventory.Inventory{Hosts: []inventory.Host{
		{Name: "n1/a", Node: "n1", Address: "10.0.0.1", Port: 22, User: "train"},
		{Name: "n1/b", Node: "n1", Address: "10.0.0.1", Port: 22, User: "train"},
		{Name: "n2", Node: "n2", Address: "10.0.0.2", Port: 22, User: "train"},
		{Name: "n3", Node: "n3", Address: "n3", Python: "/opt/python"},
	}})
	if want := "n[1-2]: address, port, user: ignored, because Slurm reaches nodes by their names and runs commands as your user\n"; said.String() != want {
		t.Errorf("%q", said.String())
	}
}
