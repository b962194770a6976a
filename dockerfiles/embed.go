// Package dockerfiles holds the toolchain images: a Dockerfile of two stages, and
// the scripts they run, which the host builder runs too. What is pinned is pinned
// here: packages in *.txt, tools in the ARG lines; torch and the CUDA toolkit
// are arguments, for they are what the user chooses.
package dockerfiles

import (
	"embed"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

//go:embed *.Dockerfile *.sh *.txt *.py *.h
var files embed.FS

// DefaultImage is the base where images can be pulled; a root file system tar
// of the same Debian release serves where they cannot.
const DefaultImage = "debian:bookworm-slim"

// RootfsName is the name a root file system tar must have in the build context.
const RootfsName = "rootfs.tar"

// FromImage is the base stage on an image reference.
func FromImage(ref string) string { return fmt.Sprintf("FROM %s AS base\n\n", ref) }

// FromRootfs is the base stage on the root file system tar in the context.
func FromRootfs() string { return "FROM scratch AS base\nADD " + RootfsName + " /\n\n" }

// Toolchain returns the text of the Dockerfile of a toolchain, without its base
// stage, and the files it copies from the build context by name. The scripts
// among them make the same environments where there is no container.
func Toolchain() (text string, context map[string]string, err error) {
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
	for _, stage := range []string{"runtime.Dockerfile", "toolchain.Dockerfile"} {
		text += context[stage] + "\n"
		delete(context, stage)
	}
	return text, context, nil
}

// ToolkitName is the name that nvcc's package has in the build context, where it
// was given as a file.
const ToolkitName = "toolkit.deb"

// nvccSum is where nvcc.py says which package it takes.
var nvccSum = regexp.MustCompile(`(?m)^SHA256 = "([0-9a-f]{64})"$`)

// NvccSHA256 is the sha256 of the package with nvcc for CUDA 12.
func NvccSHA256() string {
	text, err := files.ReadFile("nvcc.py")
	if m := nvccSum.FindSubmatch(text); err == nil && m != nil {
		return string(m[1])
	}
	return ""
}

// RuntimeRequirements lists what an environment needs beside torch to run
// DeepSpeed, as pinned requirements: what the smoke test runs in, and what a
// test node has.
func RuntimeRequirements() ([]string, error) {
	text, err := files.ReadFile("runtime.txt")
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
