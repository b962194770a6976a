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

	"github.com/dsbuild/dsbuild/ci/python"
	"github.com/dsbuild/dsbuild/dockerfiles"
)

// makeEnvironments gives every node the environment it is to have.
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
		needs, _ := dockerfiles.RuntimeRequirements() // an error shows when they are installed
		return fmt.Sprintf("%s %s python %s %s\n", e, opt.Torch, opt.Python, strings.Join(slices.Concat(needs, opt.Packages), " "))
	case FakeTorch:
		return fmt.Sprintf("%s %s python %s\n", e, FakeTorchVersion, opt.Python)
	case NoPython:
		return e.String() + "\n"
	}
	return fmt.Sprintf("%s python %s\n", e, opt.Python)
}

func (n *Node) venv() string        { return filepath.Join(n.Dir, "venv") }
func (n *Node) envMarkFile() string { return filepath.Join(n.Dir, "venv.made") }

func (n *Node) makeEnv(ctx context.Context, opt Options, py string) error {
	os.Remove(n.envMarkFile())
	if err := os.RemoveAll(n.venv()); err != nil {
		return err
	}
	switch n.Env {
	case NoPython:
		return nil
	case WithTorch:
		return n.torchEnv(ctx, opt, py)
	}
	if err := python.Run(ctx, nil, py, "-m", "venv", "--without-pip", n.venv()); err != nil {
		return err
	}
	if n.Env == FakeTorch {
		return n.fakeTorch(opt.Python)
	}
	return nil
}

// torchEnv installs torch from uv's cache by hard links: the files are there
// once, however many nodes there are. Installers replace files and never
// write into them, so one node cannot change another's.
func (n *Node) torchEnv(ctx context.Context, opt Options, py string) error {
	uv, err := python.GetUV(ctx, opt.CacheDir, py, opt.Log)
	if err != nil {
		return err
	}
	if !sameDevice(opt.CacheDir, n.Dir) {
		opt.Log(fmt.Sprintf("%s and %s are on different file systems: every environment is a copy of 5 GB", opt.CacheDir, n.Dir))
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

// fakeTorch puts a stub of torch into a bare environment: enough to be asked
// for its version.
func (n *Node) fakeTorch(version string) error {
	site := filepath.Join(n.venv(), "lib", "python"+version, "site-packages")
	major, _, _ := strings.Cut(FakeTorchCUDA, ".")
	local := FakeTorchVersion + "+cu" + strings.ReplaceAll(FakeTorchCUDA, ".", "")
	files := map[string]string{
		"torch/__init__.py": fmt.Sprintf(`"""A stub of torch for refusal tests: it knows its version and nothing else."""
from . import version, cuda, _C
__version__ = %q
def compiled_with_cxx11_abi(): return _C._GLIBCXX_USE_CXX11_ABI
`, local),
		"torch/version.py":                        fmt.Sprintf("__version__ = %q\ncuda = %q\nhip = None\ngit_version = 'stub'\n", local, FakeTorchCUDA),
		"torch/cuda.py":                           "def is_available(): return False\ndef device_count(): return 0\n",
		"torch/_C.py":                             "_GLIBCXX_USE_CXX11_ABI = True\n",
		"torch-" + local + ".dist-info/METADATA":  fmt.Sprintf("Metadata-Version: 2.1\nName: torch\nVersion: %s\nSummary: a stub (CUDA %s)\n", local, major),
		"torch-" + local + ".dist-info/INSTALLER": "dsbuild-test\n",
		"torch-" + local + ".dist-info/RECORD":    "torch/__init__.py,,\ntorch/version.py,,\ntorch/cuda.py,,\ntorch/_C.py,,\n",
	}
	for name, text := range files {
		file := filepath.Join(site, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
