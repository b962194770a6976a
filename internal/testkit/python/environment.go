package python

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/lockedfile"
)

// Ansible is the requirement for the Ansible with which tests and benchmarks compare dsbuild.
const Ansible = "ansible-core==2.19.14"

// CacheDir returns dsbuild's folder in the user's cache.
func CacheDir() (string, error) {
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "dsbuild"), err
}

// EnvironmentOptions describe a Python environment that several runs share.
type EnvironmentOptions struct {
	Interpreter string // the program; "" means the machine's Python 3.11
	Packages    []string
	Log         func(line string) // gets a line before a download

	// Portable makes an environment that works under another path, for users who cannot write to
	// it: relocatable, with pip, and compiled to byte code.
	Portable bool
}

// Environment returns the folder of an environment with exactly these packages. The first call
// makes it, under a lock; later calls find it finished and change nothing.
func Environment(ctx context.Context, opt EnvironmentOptions) (dir string, err error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	if opt.Interpreter == "" {
		if opt.Interpreter, err = Find(ctx, "3.11"); err != nil {
			return "", err
		}
	}
	dir = filepath.Join(cache, "environments", opt.digest())
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	unlock, err := lockedfile.MutexAt(dir + ".lock").Lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	finished := dir + ".finished"
	if _, err := os.Stat(finished); err == nil {
		return dir, nil
	}
	if err := makeEnvironment(ctx, opt, dir); err != nil {
		return "", err
	}
	return dir, os.WriteFile(finished, nil, 0o644)
}

// digest identifies the environment by everything that determines its contents.
func (o EnvironmentOptions) digest() string {
	contents := append([]string{o.Interpreter}, o.Packages...)
	if o.Portable {
		contents = append(contents, "portable")
	}
	sum := sha256.Sum256([]byte(strings.Join(contents, "\n")))
	return hex.EncodeToString(sum[:8])
}

func makeEnvironment(ctx context.Context, opt EnvironmentOptions, dir string) error {
	uv, err := GetUV(ctx, opt.Interpreter, opt.Log)
	if err != nil {
		return err
	}
	venv := []string{"venv", "--quiet", "--clear", "--no-project", "--python", opt.Interpreter}
	if opt.Portable {
		venv = append(venv, "--relocatable", "--seed")
	}
	if err := uv.Run(ctx, append(venv, dir)...); err != nil {
		return err
	}
	inside := filepath.Join(dir, "bin", "python")
	if err := uv.Install(ctx, inside, opt.Log, opt.Packages...); err != nil || !opt.Portable {
		return err
	}
	// The users of the environment cannot write byte code, so all files are compiled now. Some
	// files are for another Python and do not compile; nobody imports them.
	opt.Log("compiling the environment's Python files (once) …")
	_ = Run(ctx, nil, inside, "-m", "compileall", "-qq", "-j", "0", filepath.Join(dir, "lib"))
	return ctx.Err()
}
