// Package dockerfiles holds the toolchain images. What is pinned is pinned
// here: packages in *.txt, tools in the ARG lines; torch and the CUDA toolkit
// are arguments, for they are what the user chooses.
package dockerfiles

import (
	"embed"
	"fmt"
	"io/fs"
	"strings"
)

//go:embed *.Dockerfile *.txt
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

// Toolchain returns the text of a toolchain's Dockerfile, without its base
// stage, and the files it copies from the build context by name.
func Toolchain(name string) (text string, context map[string]string, err error) {
	body, err := files.ReadFile(name + ".Dockerfile")
	if err != nil {
		return "", nil, fmt.Errorf("toolchain %s: %w", name, err)
	}
	context = map[string]string{}
	names, err := fs.Glob(files, "*.txt")
	if err != nil {
		return "", nil, err
	}
	for _, n := range names {
		content, err := files.ReadFile(n)
		if err != nil {
			return "", nil, err
		}
		context[n] = string(content)
	}
	return string(body), context, nil
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
