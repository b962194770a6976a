//go:build linux

package nodes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
)

// makeEnvironments makes the environment of every node.
func (f *Fleet) makeEnvironments(ctx context.Context, opt Options) error {
	py := ""
	for _, n := range f.Nodes {
		want := envMark(n.Env, opt)
		have, err := os.ReadFile(n.envMarkFile())
		if err == nil && string(have) == want {
			continue
		}
		if py == "" && n.Env != NoPython {
			if py, err = python.Find(ctx, opt.Python); err != nil {
				return err
			}
		}
		if err := n.makeEnv(ctx, opt, py); err != nil {
			return fmt.Errorf("%s: making its Python environment: %w", n.Name, err)
		}
		if err := os.WriteFile(n.envMarkFile(), []byte(want), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func envMark(e Env, opt Options) string {
	switch e {
	case WithTorch:
		needs, _ := dockerfiles.RuntimeRequirements() // the installation reports an error
		return fmt.Sprintf("%s %s python %s %s\n", e, opt.Torch, opt.Python, strings.Join(slices.Concat(needs, opt.Packages), " "))
	case FakeTorch:
		return fmt.Sprintf("%s %s python %s quick pip %v\n", e, FakeTorchVersion, opt.Python, opt.QuickPip)
	default:
		return e.String() + "\n"
	}
}

func (n *Node) venv() string        { return filepath.Join(n.Dir, "venv") }
func (n *Node) envMarkFile() string { return filepath.Join(n.Dir, "venv.made") }

func (n *Node) makeEnv(ctx context.Context, opt Options, py string) error {
	os.Remove(n.envMarkFile())
	if err := os.RemoveAll(n.venv()); err != nil {
		return err
	}
	switch n.Env {
	case WithTorch:
		return n.torchEnv(ctx, opt, py)
	case FakeTorch:
		pip, err := unpackedPip(ctx, opt, py)
		if err != nil {
			return err
		}
		return python.StandIn{Interpreter: py, Version: opt.Python, Torch: FakeTorchVersion, CUDA: FakeTorchCUDA, Pip: pip}.Make(n.venv())
	default:
		return nil
	}
}

// unpackedPip returns the folder of the pip of FakeTorch.
func unpackedPip(ctx context.Context, opt Options, py string) (string, error) {
	if !opt.QuickPip {
		return python.Pip(ctx, py)
	}
	dir := filepath.Join(opt.Dir, "quickpip")
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	return dir, python.UnpackQuickPip(ctx, py, dir)
}

// torchEnv installs torch from uv's cache by hard links, so the files exist once for all nodes.
// Installers replace files and never write into them, so one node cannot change another's.
func (n *Node) torchEnv(ctx context.Context, opt Options, py string) error {
	cache, err := python.CacheDir()
	if err != nil {
		return err
	}
	uv, err := python.GetUV(ctx, py, opt.Log)
	if err != nil {
		return err
	}
	if !sameDevice(cache, n.Dir) {
		opt.Log(fmt.Sprintf("%s and %s are on different file systems: every environment is a copy of 5 GB", cache, n.Dir))
	}
	if err := uv.Venv(ctx, py, n.venv()); err != nil {
		return err
	}
	needs, err := dockerfiles.RuntimeRequirements()
	if err != nil {
		return err
	}
	return uv.Install(ctx, n.Python, opt.Log, slices.Concat(needs, opt.Packages, []string{"torch==" + opt.Torch})...)
}

func sameDevice(a, b string) bool {
	var x, y syscall.Stat_t
	return syscall.Stat(a, &x) == nil && syscall.Stat(b, &y) == nil && x.Dev == y.Dev
}
