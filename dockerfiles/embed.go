// Package dockerfiles holds the toolchain images: a Dockerfile of two stages, and its scripts,
// which the host builder also runs. Package versions are pinned in *.txt, tool versions in the
// ARG lines. The user chooses torch and the CUDA toolkit, so these two are arguments.
// packages.lock pins each Python package by the sha256 of its file.
package dockerfiles

import (
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

//go:embed *.Dockerfile *.sh *.txt *.py *.h *.lock
var files embed.FS

// DefaultImage is the base on hosts that can pull images. On other hosts, a root file system tar
// of the same Debian release takes its place.
const DefaultImage = "debian:bookworm-slim"

// RootfsName is the name a root file system tar must have in the build context.
const RootfsName = "rootfs.tar"

// FromImage returns the base stage for an image reference.
func FromImage(ref string) string { return fmt.Sprintf("FROM %s AS base\n\n", ref) }

// FromRootfs returns the base stage for the root file system tar in the context.
func FromRootfs() string { return "FROM scratch AS base\nADD " + RootfsName + " /\n\n" }

// Toolchain returns the text of a toolchain's Dockerfile, without its base stage, and by name the files
// that it copies from the build context, for the machine that builds. The host builder makes the same
// environments with the scripts among them, without a container.
func Toolchain(machine string) (text string, context map[string]string, err error) {
	context = map[string]string{}
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		return "", nil, err
	}
	for _, e := range entries {
		content, err := files.ReadFile(e.Name())
		if err != nil {
			return "", nil, err
		}
		context[e.Name()] = string(content)
	}
	delete(context, LockName) // a plan has its part of it
	delete(context, uvFiles)  // the images install uv by uv.txt
	context[uvX86] = context[uvPins(machine)]
	delete(context, uvArm)
	for _, stage := range []string{"runtime.Dockerfile", "toolchain.Dockerfile"} {
		text += context[stage] + "\n"
		delete(context, stage)
	}
	return text, context, nil
}

// ToolkitName is the name of nvcc's package in the build context, if the user gave it as a file.
const ToolkitName = "toolkit.deb"

// nvccConstant matches a constant of nvcc.py.
var nvccConstant = regexp.MustCompile(`(?m)^([A-Z0-9]+) = "(.*?)"`)

// nvccConstants returns the constants of nvcc.py.
func nvccConstants() map[string]string {
	text, err := files.ReadFile("nvcc.py")
	if err != nil {
		panic(err) // it is part of the program
	}
	found := map[string]string{}
	for _, m := range nvccConstant.FindAllStringSubmatch(string(text), -1) {
		found[m[1]] = m[2]
	}
	return found
}

// NvccSHA256 returns the sha256 of the package with nvcc for CUDA 12.
func NvccSHA256() string { return nvccConstants()["SHA256"] }

// NvccURL returns the address of the package with nvcc for CUDA 12 on a mirror of Debian. An empty mirror means
// Debian's own.
func NvccURL(mirror string) string {
	of := nvccConstants()
	return cmp.Or(mirror, of["ARCHIVE"]) + "/" + of["PACKAGE"]
}

// RuntimeRequirements lists DeepSpeed's run-time dependencies except torch, as pinned requirements.
// The smoke test and the test nodes install them.
func RuntimeRequirements() ([]string, error) { return requirements("runtime.txt") }

// BuildRequirements lists the tools of a build, as pinned requirements.
func BuildRequirements() ([]string, error) { return requirements("build.txt") }

// requirements returns the lines of a file without comments.
func requirements(name string) ([]string, error) {
	text, err := files.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return out, nil
}
