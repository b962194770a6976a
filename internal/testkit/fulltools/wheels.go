package fulltools

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/wheel"
)

//go:embed wheels.txt
var wheelList string

// listed is a wheel of the package index. Its file name has all that identifies it in the index:
// name, version, Python, ABI and platforms.
type listed struct {
	file, sha256           string
	name, version          string
	python, abi, platforms string
}

var listLine = regexp.MustCompile(`^([0-9a-f]{64})  (([\w.]+)-([\w.+!]+)(?:-\d\w*)?-([\w.]+)-([\w.]+)-([\w.]+)\.whl)$`)

// parseList reads a list in the format of sha256sum; # begins a comment line.
func parseList(text string) ([]listed, error) {
	var all []listed
	n := 0
	for line := range strings.Lines(text) {
		n++
		if line = strings.TrimRight(line, "\n"); line == "" || line[0] == '#' {
			continue
		}
		m := listLine.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("wheels.txt:%d: not a sha256, two spaces and the name of a wheel: %q", n, line)
		}
		all = append(all, listed{file: m[2], sha256: m[1], name: m[3], version: m[4], python: m[5], abi: m[6], platforms: m[7]})
	}
	return all, nil
}

// pythonVersion is pip's name for the wheel's Python: 3.11 for cp311, 3 for py2.py3.
func (w listed) pythonVersion() string {
	tags := strings.Split(w.python, ".")
	digits := strings.TrimLeft(tags[len(tags)-1], "abcdefghijklmnopqrstuvwxyz")
	if len(digits) < 2 {
		return digits
	}
	return digits[:1] + "." + digits[1:]
}

// downloadArgs returns the arguments with which pip downloads exactly this file. It does not
// matter on which Python the wheel would run.
func (w listed) downloadArgs(list, dir string) []string {
	q := []string{
		"-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-cache-dir",
		"--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--require-hashes", "--requirement", list,
		"--dest", dir, "--python-version", w.pythonVersion(),
	}
	for _, abi := range strings.Split(w.abi, ".") {
		q = append(q, "--abi", abi)
	}
	for _, platform := range strings.Split(w.platforms, ".") {
		q = append(q, "--platform", platform)
	}
	return q
}

// Wheels returns the wheels of the package index that are listed in wheels.txt. It downloads those
// that are missing, and removes others.
func Wheels(tb testing.TB) []string {
	tb.Helper()
	all, err := parseList(wheelList)
	if err != nil {
		tb.Fatal(err)
	}
	dir := filepath.Join(Dir(tb), "wheels")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	pip := filepath.Join(Tools(tb), "python")
	var files []string
	for _, w := range all {
		file := filepath.Join(dir, w.file)
		if checkSHA256(file, w.sha256) != nil {
			tb.Logf("downloading %s", w.file)
			if err := w.download(tb.Context(), pip, file); err != nil {
				tb.Fatalf("%s: %v", w.file, err)
			}
		}
		files = append(files, file)
	}
	there, err := filepath.Glob(filepath.Join(dir, "*"))
	for _, file := range there {
		if !slices.Contains(files, file) {
			err = errors.Join(err, os.RemoveAll(file))
		}
	}
	if err != nil {
		tb.Fatal(err)
	}
	return files
}

// Wheel returns the one listed wheel whose name begins with prefix.
func Wheel(tb testing.TB, prefix string) string {
	tb.Helper()
	for _, file := range Wheels(tb) {
		if strings.HasPrefix(filepath.Base(file), prefix) {
			return file
		}
	}
	tb.Fatalf("no wheel in wheels.txt begins with %s", prefix)
	return ""
}

// download downloads the wheel into a file, by way of a folder beside it.
func (w listed) download(ctx context.Context, pip, file string) error {
	tmp, err := os.MkdirTemp(filepath.Dir(file), ".download-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	list := filepath.Join(tmp, "wheel.txt")
	line := fmt.Sprintf("%s==%s --hash=sha256:%s\n", w.name, w.version, w.sha256)
	if err := os.WriteFile(list, []byte(line), 0o644); err != nil {
		return err
	}
	// The file passes through TMPDIR, and /tmp may be memory.
	if err := python.Run(ctx, []string{"TMPDIR=" + tmp}, pip, w.downloadArgs(list, tmp)...); err != nil {
		return err
	}
	if err := checkSHA256(filepath.Join(tmp, w.file), w.sha256); err != nil {
		return err
	}
	return os.Rename(filepath.Join(tmp, w.file), file)
}

// checkSHA256 returns an error if a file does not have this sha256.
func checkSHA256(file, want string) error {
	have, _, err := wheel.HashFile(file)
	if err != nil {
		return err
	}
	if have != want {
		return fmt.Errorf("%s has the sha256 %s instead of %s", file, have, want)
	}
	return nil
}
