package environment

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

// UV is the uv release that is downloaded from an index and run on the control node and on nodes.
type UV struct {
	Version string
	Sums    []string // sha256 of the release's wheels; no other file is run
}

// FindUV returns the path of a uv that is at least as new as uv: the one on PATH, or one that is unpacked into dir from
// uv's wheel in the cache or on an index. dir must not be writable by other accounts.
func FindUV(ctx context.Context, uv UV, dir string, c *Collector) (string, error) {
	if p, err := exec.LookPath("uv"); err == nil {
		out, err := exec.CommandContext(ctx, p, "--version").Output()
		words := strings.Fields(string(out))
		if err == nil && len(words) > 1 && words[0] == "uv" && wheel.CompareVersions(words[1], uv.Version) >= 0 {
			return p, nil
		}
	}
	path := filepath.Join(dir, "uv")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	text, err := c.readUV(ctx, uv)
	if err == nil {
		err = unpackUV(text, path)
	}
	if err != nil {
		err = fmt.Errorf("no uv %s or newer on PATH, and none from the index: %w", uv.Version, err)
		if errors.As(err, new(*fs.PathError)) { // the cache cannot be written
			return "", err
		}
		return "", fault.WithHint(err, "install uv, or pass --index-url")
	}
	return path, nil
}

// readUV returns the content of uv's wheel for this machine, from the cache or an index. Its sha256 is one of uv.Sums.
func (c *Collector) readUV(ctx context.Context, uv UV) ([]byte, error) {
	for _, sum := range uv.Sums {
		kept, _ := os.ReadDir(filepath.Join(c.Cache, sum))
		for _, f := range kept {
			text, err := readWithSum(c.cached(File{File: f.Name(), SHA256: sum}), sum)
			if err == nil && runsHere(f.Name()) {
				return text, nil
			}
		}
	}
	found, err := c.wheelsOf(ctx, "uv", uv.Version, uv.Sums)
	if err != nil {
		return nil, err
	}
	here := slices.IndexFunc(found, func(f File) bool { return runsHere(f.File) })
	if here < 0 {
		return nil, errors.New("no wheel for this platform")
	}
	path, _, err := c.fetch(ctx, found[here])
	if err != nil {
		return nil, err
	}
	return readWithSum(path, found[here].SHA256)
}

// readWithSum returns the content of a file with this sha256. What it returns cannot change after the comparison.
func readWithSum(path, sum string) ([]byte, error) {
	f, err := wheel.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	if got := sha256.Sum256(text); hex.EncodeToString(got[:]) != sum {
		return nil, damagedf("%s has sha256 %x, want %s", path, got, sum)
	}
	return text, nil
}

// unpackUV writes the program in the content of uv's wheel to path.
func unpackUV(text []byte, path string) error {
	z, err := zip.NewReader(bytes.NewReader(text), int64(len(text)))
	if err != nil {
		return err
	}
	for _, f := range z.File {
		if !strings.HasSuffix(f.Name, ".data/scripts/"+filepath.Base(path)) {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return err
		}
		defer r.Close()
		// A process that is started meanwhile would inherit the open file, and the program could not be run: "text file busy".
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		return atomicfile.Write(path, r, 0o700)
	}
	return errors.New("uv's wheel contains no executable")
}

// runsHere reports whether a wheel of uv is for this machine.
func runsHere(name string) bool {
	platform := map[string]string{"linux": "manylinux", "darwin": "macosx_", "windows": "win_"}[runtime.GOOS]
	machines := map[string][]string{"amd64": {"x86_64", "amd64"}, "arm64": {"aarch64", "arm64"}}[runtime.GOARCH]
	return platform != "" && strings.Contains(name, platform) && slices.ContainsFunc(machines, func(machine string) bool {
		return strings.HasSuffix(strings.TrimSuffix(name, ".whl"), "_"+machine)
	})
}
