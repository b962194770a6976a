//go:build full && linux

// Package pictures is `make pictures`: it runs dsbuild on local nodes at a real terminal and
// writes the terminal's contents into docs/pictures, as SVG. No text in a picture is typed by
// hand, but the directory of the commands has another name there.
package pictures

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
)

// scene is one picture: commands that run one after the other, with their output.
type scene struct {
	name, title string
	columns     int
	commands    []string
}

// allScenes lists all pictures. Their commands find dsbuild, inventory.yaml with three
// nodes, and train.sbatch, which has mistakes.
func allScenes() []scene {
	return []scene{{
		name: "tour", title: "A wheel is built, put on three nodes, and compared there", columns: 112,
		commands: []string{
			"dsbuild wheel --gpu A100 --no-cache",
			"dsbuild deploy inventory.yaml",
			"echo '# faster' >> node2/venv/lib/python3.11/site-packages/deepspeed/ops/adam/cpu_adam.py",
			"dsbuild verify inventory.yaml",
		},
	}, {
		name: "inspect", title: "What is inside a wheel", columns: 160,
		commands: []string{"dsbuild inspect dist"},
	}, {
		name: "conflict", title: "What does not go together, and what does", columns: 112,
		commands: []string{
			"dsbuild gpus V100 A100 H100 B200",
			"dsbuild wheel --gpu V100 --torch 2.15.0",
			"dsbuild wheel --gpu V100 --dry-run 2>&1 | head -4",
		},
	}, {
		name: "lint", title: "Mistakes in a launch script", columns: 120,
		commands: []string{"cat train.sbatch", "dsbuild launch lint train.sbatch"},
	}}
}

// faulty is the script of scene lint. Older guides have such scripts.
const faulty = `#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:8
export MASTER_ADDR=$(hostname)
srun torchrun --nnodes=2 --node_rank=$SLURM_NODEID --nproc_per_node=8 train.py
`

// TestDrawPictures makes all pictures anew, in docs/pictures.
func TestDrawPictures(t *testing.T) {
	fleet := nodestest.Up(t, nodes.Options{Count: 3, Env: nodes.WithTorch})
	dir := fleet.Dir
	if err := os.WriteFile(filepath.Join(dir, "train.sbatch"), []byte(faulty), 0o644); err != nil {
		t.Fatal(err)
	}
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range allScenes() {
		screen, err := s.playScene(t.Context(), dir, bin)
		if err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		if strings.Contains(strings.ReplaceAll(screen.text(), "\n", ""), dir) { // a long line has been broken
			t.Fatalf("%s: the picture has a path of this machine:\n%s", s.name, screen.text())
		}
		if err := os.WriteFile(filepath.Join("../../docs/pictures", s.name+".svg"), []byte(screen.renderSVG(s.title)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// shownDir stands in the pictures for the directory of the commands.
const shownDir = "/home/eve"

// playScene runs the commands of a scene and returns the terminal's contents after them.
func (s scene) playScene(ctx context.Context, dir, bin string) (*screen, error) {
	shown := newScreen(s.columns)
	for _, line := range s.commands {
		shown.command(line)
		cmd := exec.CommandContext(ctx, "bash", "-c", line)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "TERM=xterm-256color", "LC_ALL=C.UTF-8")
		terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 60, Cols: uint16(s.columns)}) //nolint:gosec // with a fixed width
		if err != nil {
			return nil, err
		}
		printed, err := io.ReadAll(terminal)
		if err != nil && !errors.Is(err, syscall.EIO) { // a terminal reports this when no process writes to it any more
			return nil, err
		}
		if _, err := shown.Write(bytes.ReplaceAll(printed, []byte(dir), []byte(shownDir))); err != nil {
			return nil, err
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
			return nil, errors.Join(err, ctx.Err())
		}
		if err := terminal.Close(); err != nil {
			return nil, err
		}
	}
	return shown, nil
}
