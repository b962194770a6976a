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

// Environment is the folder of an environment of Python 3.11 with just these
// packages, made once for all tests and kept. log gets a line before a download.
func Environment(ctx context.Context, log func(line string), requirements ...string) (dir string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "dsbuild")
	sum := sha256.Sum256([]byte(strings.Join(requirements, "\n")))
	dir = filepath.Join(cache, "tests", hex.EncodeToString(sum[:6]))
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	unlock, err := lockedfile.MutexAt(dir + ".lock").Lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	mark := filepath.Join(dir, "made")
	if _, err := os.Stat(mark); err == nil {
		return dir, nil
	}
	if err := makeEnvironment(ctx, cache, dir, log, requirements); err != nil {
		return "", err
	}
	return dir, os.WriteFile(mark, nil, 0o644)
}

func makeEnvironment(ctx context.Context, cache, dir string, log func(line string), requirements []string) error {
	py, err := Find(ctx, "3.11")
	if err != nil {
		return err
	}
	uv, err := GetUV(ctx, cache, py, log)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := uv.Venv(ctx, py, dir); err != nil {
		return err
	}
	return uv.Run(ctx, append([]string{"pip", "install", "--quiet", "--python", filepath.Join(dir, "bin", "python")}, requirements...)...)
}
