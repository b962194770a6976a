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

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

// BaseError returns the error of a base that cannot be used.
func BaseError(arg string, err error) error {
	return fault.New(fault.Usage,
		"specify an uncompressed root file system tar or OCI tar, or an image such as debian:bookworm-slim", "base %s: %w", arg, err)
}

// imageRef matches the form of an image reference: name, tag, digest.
var imageRef = regexp.MustCompile(`^[a-z0-9]+([._/:-]?[a-z0-9]+)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?$`)

var digestSuffix = regexp.MustCompile(`@(sha256:[0-9a-f]{64})$`)

// NewBase reads a --base: the path of a root file system tar or of an OCI
// tar, or else an image reference.
func NewBase(arg string) (Base, error) {
	info, err := os.Stat(arg)
	if err != nil {
		if filepath.Ext(arg) == ".tar" || !imageRef.MatchString(arg) {
			return Base{}, BaseError(arg, errors.New("neither a file nor an image reference"))
		}
		b := Base{Ref: arg}
		if m := digestSuffix.FindStringSubmatch(arg); m != nil {
			b.Digest = m[1]
		}
		return b, nil
	}
	if !info.Mode().IsRegular() {
		return Base{}, BaseError(arg, errors.New("not a regular file"))
	}
	oci, err := isOCI(arg)
	if err != nil {
		return Base{}, BaseError(arg, err)
	}
	sum, _, err := wheel.HashFile(arg)
	if err != nil {
		return Base{}, BaseError(arg, err)
	}
	file, err := filepath.Abs(arg)
	if err != nil {
		return Base{}, err
	}
	return Base{Ref: filepath.Base(arg), File: file, Digest: "sha256:" + sum, OCI: oci}, nil
}

// isOCI reports whether a tar is an OCI image layout, which has a marker file in its top directory,
// or a root file system.
func isOCI(file string) (bool, error) {
	f, err := wheel.OpenFile(file)
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
