package python

import (
	"context"
	"os"
	"path/filepath"
)

const (
	// ansibleCore is the Ansible that tests compare with, and ansiblePython its Python.
	ansibleCore   = "ansible-core==2.19.14"
	ansiblePython = "3.11"
)

// Ansible makes an environment with Ansible in dir, and returns the folder of
// its programs. log gets a line before a download.
func Ansible(ctx context.Context, dir string, log func(line string)) (bin string, err error) {
	py, err := Find(ctx, ansiblePython)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	uv, err := GetUV(ctx, filepath.Join(cache, "dsbuild"), py, log)
	if err != nil {
		return "", err
	}
	if err := uv.Venv(ctx, py, dir); err != nil {
		return "", err
	}
	bin = filepath.Join(dir, "bin")
	return bin, uv.Install(ctx, filepath.Join(bin, "python"), log, ansibleCore)
}
