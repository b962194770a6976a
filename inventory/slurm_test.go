package inventory_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/inventory"
)

// partitions answers as a Slurm of two partitions would.
func partitions(_ context.Context, partition string) ([]inventory.SlurmNode, error) {
	switch partition {
	case "":
		return []inventory.SlurmNode{{Name: "cpu1", Groups: []string{"batch"}}}, nil
	case "gpu":
		return []inventory.SlurmNode{
			{Name: "gpu01", Slots: 8, Groups: []string{"a100", "gpu", "gpu01", "ib&hdr", "a100"}},
			{Name: "gpu02", Slots: 4, Groups: []string{"h100", "gpu"}},
		}, nil
	case "odd":
		return []inventory.SlurmNode{{Name: "-rf"}}, nil
	}
	return nil, fault.WithHint(errors.New("no nodes in Slurm partition "+partition), "ask sinfo")
}

// The nodes of a partition, with the groups that --limit can name.
func TestSlurmPartition(t *testing.T) {
	t.Parallel()
	opt := inventory.Options{Slurm: partitions}
	inv, err := inventory.Open(t.Context(), "slurm:gpu", opt)
	if err != nil {
		t.Fatal(err)
	}
	h := inv.Hosts[0]
	if inv.Path != "slurm:gpu" || len(inv.Hosts) != 2 || h.Name != "gpu01" || h.Node != "gpu01" || h.Address != "gpu01" || h.Slots != 8 || h.Python != "python3" || h.Position != "slurm:gpu" {
		t.Errorf("%+v", inv)
	}
	if !slices.Equal(h.Groups, []string{"a100", "gpu"}) {
		t.Errorf("groups: %q", h.Groups)
	}
	if some, err := inv.Select("gpu,!h100"); err != nil || len(some.Hosts) != 1 || some.Hosts[0].Name != "gpu01" {
		t.Errorf("%v, %v", some, err)
	}
	if inv, err := inventory.Open(t.Context(), "slurm:", opt); err != nil || len(inv.Hosts) != 1 || inv.Hosts[0].Name != "cpu1" {
		t.Errorf("the default partition: %v, %v", inv, err)
	}
}

func TestSlurmPartitionMistakes(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"slurm:nope": "slurm:nope: cannot read the inventory: no nodes in Slurm partition nope",
		"slurm:odd":  `slurm:odd: invalid name "-rf"`,
	} {
		_, err := inventory.Open(t.Context(), name, inventory.Options{Slurm: partitions})
		var wrong *inventory.Error
		if !errors.As(err, &wrong) || !strings.HasPrefix(err.Error(), want) || wrong.ExitCode() != 2 {
			t.Errorf("%s: %v", name, err)
		}
		if name == "slurm:nope" && fault.Hint(err) != "ask sinfo" {
			t.Errorf("hint %q", fault.Hint(err))
		}
	}
	if _, err := inventory.Open(t.Context(), "slurm:gpu", inventory.Options{}); err == nil {
		t.Error("without a Slurm to ask")
	}
}

// What is a file goes first.
func TestSlurmPartitionOrFile(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile(filepath.Join(".", "slurm:gpu"), []byte("n[1-3]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	inv, err := inventory.Open(t.Context(), "slurm:gpu", inventory.Options{Slurm: partitions})
	if err != nil || len(inv.Hosts) != 3 {
		t.Errorf("%v, %v", inv, err)
	}
}
