//go:build linux

package slurm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
)

// FakeTorch makes a Python environment in a folder on the node's own disk, which User may
// change. It has einops, and a stub that claims to be the torch of internal/testkit/nodes.
func (n *Node) FakeTorch(ctx context.Context, dir string) (err error) {
	interpreter, err := findSystemPython(ctx)
	if err != nil {
		return err
	}
	shared, err := os.MkdirTemp(n.cluster.Home, "environment-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(shared)) }()
	environment := python.StandIn{
		Interpreter: interpreter, Version: pythonVersion,
		Torch: nodes.FakeTorchVersion, CUDA: nodes.FakeTorchCUDA, Packages: []string{"einops==0.8.0"},
	}
	if err := environment.Make(filepath.Join(shared, "made")); err != nil {
		return err
	}
	const move = `cp -R "$0/made" "$1" && chown -R "$2:$2" "$1"`
	if err := runSilently(n.Command(ctx, "sh", "-c", move, shared, dir, strconv.Itoa(UserID))); err != nil {
		return fmt.Errorf("%s: making an environment: %w", n.Name, err)
	}
	return nil
}
