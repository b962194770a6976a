package pipeline

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/wheel"
)

// ErrBase is a base that cannot be used.
var ErrBase = errors.New("no usable base")

// imageRef is the shape of an image reference: name, tag, digest.
var imageRef = regexp.MustCompile(`^[a-z0-9]+([._/:-]?[a-z0-9]+)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?$`)

var digestSuffix = regexp.MustCompile(`@(sha256:[0-9a-f]{64})$`)

// NewBase reads a --base: the path of a root file system tar or of an OCI
// tar, or else an image reference.
func NewBase(arg string) (Base, error) {
	info, err := os.Stat(arg)
	if err != nil {
		if filepath.Ext(arg) == ".tar" || !imageRef.MatchString(arg) {
			return Base{}, hint.With(fmt.Errorf("%w: %s: no such file, and no image reference", ErrBase, arg),
				"give a root file system tar, an OCI tar, or an image such as debian:bookworm-slim")
		}
		b := Base{Ref: arg}
		if m := digestSuffix.FindStringSubmatch(arg); m != nil {
			b.Digest = m[1]
		}
		return b, nil
	}
	if !info.Mode().IsRegular() {
		return Base{}, fmt.Errorf("%w: %s is no file", ErrBase, arg)
	}
	oci, err := isOCI(arg)
	if err != nil {
		return Base{}, hint.With(fmt.Errorf("%w: %s: %w", ErrBase, arg, err), "a base file is an uncompressed tar")
	}
	sum, _, err := wheel.HashFile(arg)
	if err != nil {
		return Base{}, fmt.Errorf("%w: %w", ErrBase, err)
	}
	file, err := filepath.Abs(arg)
	if err != nil {
		return Base{}, err
	}
	return Base{Ref: filepath.Base(arg), File: file, Digest: "sha256:" + sum, OCI: oci}, nil
}

// isOCI tells an image layout from a root file system by the marker file that
// the former must have at its top.
func isOCI(file string) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer f.Close()
	entries := tar.NewReader(f)
	for seen := 0; seen < 64; seen++ { // a layout has few entries; a root file system has thousands
		h, err := entries.Next()
		if errors.Is(err, io.EOF) && seen > 0 {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("not a tar: %w", err)
		}
		if path.Clean(h.Name) == "oci-layout" {
			return true, nil
		}
	}
	return false, nil
}
