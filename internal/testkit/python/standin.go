package python

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/lockedfile"
)

// StandIn is a Python environment of a few small files: a link to a real interpreter, and
// packages that have a name and a version but no code. It may be copied to another place.
type StandIn struct {
	Interpreter string // path of the interpreter
	Version     string // its X.Y
	// Torch is the version of a stub of torch, and CUDA the CUDA version that the stub reports.
	// The stub has these two values and no functions. "" omits the stub.
	Torch, CUDA string
	// Packages are further packages, as NAME==VERSION, which have only metadata.
	Packages []string
	// Pip is the folder of an unpacked pip (see Pip), which the environment links to; "" leaves it
	// without pip.
	Pip string
}

// Site returns the folder with the packages of an environment in dir.
func (s StandIn) Site(dir string) string {
	return filepath.Join(dir, "lib", "python"+s.Version, "site-packages")
}

// Make makes the environment in dir, which must not exist.
func (s StandIn) Make(dir string) error {
	site := s.Site(dir)
	for _, folder := range []string{site, filepath.Join(dir, "bin")} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	config := fmt.Sprintf("home = %s\ninclude-system-site-packages = false\n", filepath.Dir(s.Interpreter))
	if err := os.WriteFile(filepath.Join(dir, "pyvenv.cfg"), []byte(config), 0o644); err != nil {
		return err
	}
	if err := os.Symlink(s.Interpreter, filepath.Join(dir, "bin", "python")); err != nil {
		return err
	}
	if s.Pip != "" {
		if err := os.Symlink(filepath.Join(s.Pip, "pip"), filepath.Join(site, "pip")); err != nil {
			return err
		}
	}
	for name, text := range s.files() {
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

// files returns the files of the packages, by their paths below site-packages.
func (s StandIn) files() map[string]string {
	files := map[string]string{}
	add := func(name, version string) {
		files[name+"-"+version+".dist-info/METADATA"] = fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\nSummary: a stub\n", name, version)
	}
	for _, requirement := range s.Packages {
		name, version, _ := strings.Cut(requirement, "==")
		add(name, version)
	}
	if s.Torch == "" {
		return files
	}
	local := s.Torch + "+cu" + strings.ReplaceAll(s.CUDA, ".", "")
	add("torch", local)
	files["torch/__init__.py"] = fmt.Sprintf(`"""A stub of torch: it knows its version and nothing else."""
from . import version, cuda, _C
__version__ = %q
def compiled_with_cxx11_abi(): return _C._GLIBCXX_USE_CXX11_ABI
`, local)
	files["torch/version.py"] = fmt.Sprintf("__version__ = %q\ncuda = %q\nhip = None\ngit_version = 'stub'\n", local, s.CUDA)
	files["torch/cuda.py"] = "def is_available(): return False\ndef device_count(): return 0\n"
	files["torch/_C.py"] = "_GLIBCXX_USE_CXX11_ABI = True\n"
	return files
}

// Pip returns the folder of an interpreter's own pip, which is unpacked once on this machine for each version of Python.
func Pip(ctx context.Context, interpreter string) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	tag, err := exec.CommandContext(ctx, interpreter, "-c", "import sys; print(sys.implementation.cache_tag)").Output()
	if err != nil {
		return "", fmt.Errorf("asking %s for its version: %w", interpreter, err)
	}
	dir := filepath.Join(cache, "pip-"+strings.TrimSpace(string(tag)))
	unlock, err := lockedfile.MutexAt(dir + ".lock").Lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	unfinished := dir + ".new"
	if err := errors.Join(os.RemoveAll(unfinished), UnpackPip(ctx, interpreter, unfinished)); err != nil {
		return "", err
	}
	return dir, os.Rename(unfinished, dir)
}

// UnpackPip unpacks an interpreter's own pip into dir, with its byte code: Python would compile
// that pip anew each time.
func UnpackPip(ctx context.Context, interpreter, dir string) error {
	const unpack = `
import compileall, ensurepip, glob, os, sys, zipfile
found = glob.glob(os.path.join(os.path.dirname(ensurepip.__file__), "_bundled", "pip-*.whl")) + glob.glob("/usr/share/python-wheels/pip-*.whl")
zipfile.ZipFile(found[0]).extractall(sys.argv[1])
compileall.compile_dir(sys.argv[1], quiet=2)`
	if err := Run(ctx, nil, interpreter, "-c", unpack, dir); err != nil {
		return fmt.Errorf("unpacking the pip of %s: %w", interpreter, err)
	}
	return nil
}
