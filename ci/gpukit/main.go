// Command gpukit makes the folder of make gpu-kit: a wheel, the comparison of its ops with torch, and the packages that
// DeepSpeed needs besides torch and numpy. The folder runs on a machine with a GPU and without a network.
//
//	gpukit WHEEL FOLDER
package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/wheel"
)

// comparison is the program that compares ops, in the checkout.
const comparison = "fleet/node/python/dsbuild_node/compute.py"

// most is the largest size of a kit.
const most = 60 << 20

// indirect are the requirements of DeepSpeed's own requirements.
var indirect = []string{"annotated-types", "pydantic-core", "typing-extensions", "typing-inspection"}

// The files of a kit that are the same in each.
var (
	//go:embed run.sh
	runScript []byte
	//go:embed run.py
	runProgram []byte
	//go:embed kit.md
	readme []byte
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: gpukit WHEEL FOLDER")
		os.Exit(2)
	}
	if err := run(ctx, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "gpukit:", err)
		os.Exit(1)
	}
}

// run makes a kit of a wheel, in place of an older one.
func run(ctx context.Context, file, folder string) error {
	whl, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	compute, err := os.ReadFile(comparison)
	if err != nil {
		return fmt.Errorf("run gpukit at the top of the checkout: %w", err)
	}
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	packages := filepath.Join(folder, "packages")
	if err := os.MkdirAll(packages, 0o755); err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"run.sh": runScript, "run.py": runProgram, "README.md": readme, "compute.py": compute, filepath.Base(file): whl,
	} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o755); err != nil { //nolint:gosec // others may run it
			return err
		}
	}
	tables, err := compat.NewTables()
	if err != nil {
		return err
	}
	proven := slices.IndexFunc(tables.Ops, func(o compat.Op) bool { return o.StableState() == compat.Ran })
	for _, python := range tables.Ops[proven].Stable.Python {
		if err := download(ctx, packages, python); err != nil {
			return fmt.Errorf("packages for Python %s: %w", python, err)
		}
	}
	return checkSize(folder)
}

// requirements returns what DeepSpeed needs besides torch and numpy, and pip, each with the sha256 of its file.
func requirements(python string) ([]string, error) {
	direct, err := dockerfiles.RuntimeRequirements()
	if err != nil {
		return nil, err
	}
	names := append([]string{"pip"}, indirect...)
	for _, r := range direct {
		names = append(names, dockerfiles.RequirementName(r))
	}
	torches := dockerfiles.LockedTorches(python)
	if len(torches) == 0 {
		return nil, errors.New("not in " + dockerfiles.LockName)
	}
	locked, _ := dockerfiles.LockedPackages(slices.MaxFunc(torches, wheel.CompareVersions), python, "", nil, nil)
	pip, _ := dockerfiles.PinnedPip(python)
	var lines []string
	for _, p := range append(locked.Runtime, pip) {
		if p.Name != "numpy" && slices.Contains(names, p.Name) {
			lines = append(lines, p.String()+" --hash=sha256:"+p.SHA256)
		}
	}
	return lines, nil
}

// download adds the packages for a Python, and a list of them.
func download(ctx context.Context, packages, python string) error {
	lines, err := requirements(python)
	if err != nil {
		return err
	}
	list := filepath.Join(packages, python+".txt")
	if err := os.WriteFile(list, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil { //nolint:gosec // others may read it
		return err
	}
	pip := exec.CommandContext(ctx, cmp.Or(os.Getenv("PYTHON"), "python3"), "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
		"--require-hashes", "--dest", packages, "--requirement", list, "--python-version", python,
		"--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_17_x86_64", "--platform", "manylinux2014_x86_64",
		"--platform", "manylinux_2_12_x86_64", "--platform", "manylinux2010_x86_64", "--platform", "manylinux_2_5_x86_64", "--platform", "manylinux1_x86_64")
	pip.Stderr = os.Stderr
	return pip.Run()
}

// checkSize prints the size of a kit, and fails if it is too large.
func checkSize(folder string) error {
	var size int64
	err := filepath.WalkDir(folder, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			size += info.Size()
		}
		return err
	})
	if err == nil && size > most {
		err = fmt.Errorf("%s has %.1f MiB, more than %d", folder, float64(size)/(1<<20), most>>20)
	}
	if err == nil {
		fmt.Printf("%s: %.1f MiB; copy it to a machine with a GPU and torch, and run ./run.sh there\n", folder, float64(size)/(1<<20))
	}
	return err
}
