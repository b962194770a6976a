package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/internal/ui"
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

// downloadWheels downloads missing wheels of the list, and removes wheels that are not listed.
func (b *bench) downloadWheels(ctx context.Context, step ui.Step) (string, error) {
	all, err := parseList(wheelList)
	if err != nil {
		return "", err
	}
	wanted := map[string]bool{}
	fetched, size := 0, int64(0)
	for _, w := range all {
		wanted[w.file] = true
		step.Log(w.file)
		if checkSHA256(b.path("wheels", w.file), w.sha256) != nil {
			fetched++
			if err := b.downloadWheel(ctx, w); err != nil {
				return "", fmt.Errorf("%s: %w", w.file, err)
			}
		}
		info, err := os.Stat(b.path("wheels", w.file))
		if err != nil {
			return "", err
		}
		size += info.Size()
	}
	there, err := os.ReadDir(b.path("wheels"))
	for _, e := range there {
		if !wanted[e.Name()] {
			err = errors.Join(err, os.RemoveAll(b.path("wheels", e.Name())))
		}
	}
	return fmt.Sprintf("%d of %d downloaded, %s", fetched, len(all), ui.Size(size)), err
}

func (b *bench) downloadWheel(ctx context.Context, w listed) error {
	list := b.path("tmp", "wheel.txt")
	line := fmt.Sprintf("%s==%s --hash=sha256:%s\n", w.name, w.version, w.sha256)
	if err := os.WriteFile(list, []byte(line), 0o644); err != nil {
		return err
	}
	// The file passes through TMPDIR, and /tmp may be memory.
	err := python.Run(ctx, []string{"TMPDIR=" + b.path("tmp")}, b.path("tools", "bin", "python"), w.downloadArgs(list, b.path("tmp"))...)
	if err != nil {
		return err
	}
	if err := checkSHA256(b.path("tmp", w.file), w.sha256); err != nil {
		return err
	}
	return os.Rename(b.path("tmp", w.file), b.path("wheels", w.file))
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
