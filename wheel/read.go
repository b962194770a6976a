package wheel

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"deps.dev/util/pypi"
)

// ManifestName is the file in a wheel's dist-info that holds its manifest;
// ManifestSuffix is what the one beside the wheel adds to the wheel's name.
const (
	ManifestName   = "dsbuild.json"
	ManifestSuffix = ".manifest.json"
)

// maxText bounds the text files read out of a wheel (METADATA, manifest).
const maxText = 8 << 20

// FileError is a file that is no usable wheel.
type FileError struct {
	Path string
	Err  error
	hint string
}

func (e *FileError) Error() string { return fmt.Sprintf("%s: %v", e.Path, e.Err) }
func (e *FileError) Unwrap() error { return e.Err }

// Hint says what to try.
func (e *FileError) Hint() string { return e.hint }

// ExitCode is that of a wheel that is damaged or not what was asked.
func (e *FileError) ExitCode() int { return 4 }

// ErrNoManifest is a wheel that dsbuild did not build.
var ErrNoManifest = errors.New("no dsbuild manifest inside")

// Metadata is what the METADATA file of a wheel says.
type Metadata struct {
	Name         string
	Version      string
	RequiresDist []string // PEP 508, one requirement each
}

// ReadMetadata reads the METADATA of the wheel at file.
func ReadMetadata(file string) (Metadata, error) {
	text, err := readDistInfo(file, "METADATA")
	if err != nil {
		return Metadata{}, &FileError{Path: file, Err: err, hint: "the file is no wheel or is damaged: build or copy it again"}
	}
	m, err := pypi.ParseMetadata(context.Background(), string(text))
	if err != nil {
		return Metadata{}, &FileError{Path: file, Err: fmt.Errorf("METADATA: %w", err)}
	}
	meta := Metadata{Name: m.Name, Version: m.Version}
	for _, d := range m.Dependencies {
		meta.RequiresDist = append(meta.RequiresDist, requirement(d))
	}
	return meta, nil
}

func requirement(d pypi.Dependency) string {
	r := d.Name
	if d.Extras != "" {
		r += "[" + d.Extras + "]"
	}
	r += d.Constraint
	if d.Environment != "" {
		r += "; " + d.Environment
	}
	return r
}

// ReadManifest reads the manifest of the wheel at file, from inside it, and
// fills in the SHA256 and the Size of the file as it is.
func ReadManifest(file string) (Manifest, error) {
	text, err := readDistInfo(file, ManifestName)
	if errors.Is(err, errNoMember) {
		return Manifest{}, &FileError{Path: file, Err: ErrNoManifest, hint: "build the wheel with dsbuild wheel"}
	}
	if err != nil {
		return Manifest{}, &FileError{Path: file, Err: err, hint: "the file is no wheel or is damaged: build or copy it again"}
	}
	m, err := ParseManifest(text)
	if err != nil {
		return Manifest{}, &FileError{Path: file, Err: err}
	}
	if m.Name != filepath.Base(file) {
		return Manifest{}, &FileError{
			Path: file, Err: fmt.Errorf("its manifest names %s", m.Name),
			hint: "give the file its own name back: pip reads tags from it",
		}
	}
	m.SHA256, m.Size, err = HashFile(file)
	return m, err
}

// HashFile returns the SHA-256 of a file in hex, and its size in bytes.
func HashFile(file string) (sum string, size int64, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	if size, err = io.Copy(h, f); err != nil {
		return "", 0, fmt.Errorf("%s: %w", file, err)
	}
	return hex.EncodeToString(h.Sum(nil)), size, nil
}

var errNoMember = errors.New("not in the wheel")

// readDistInfo returns the file name of the wheel's one dist-info directory.
func readDistInfo(file, name string) ([]byte, error) {
	z, err := zip.OpenReader(file)
	if err != nil {
		return nil, err
	}
	defer z.Close()
	var member *zip.File
	for _, f := range z.File {
		dir, base := path.Split(f.Name)
		if base != name || strings.Count(dir, "/") != 1 || !strings.HasSuffix(dir, ".dist-info/") {
			continue
		}
		if member != nil {
			return nil, fmt.Errorf("two files %s in it", name)
		}
		member = f
	}
	if member == nil {
		return nil, fmt.Errorf("%s: %w", name, errNoMember)
	}
	r, err := member.Open()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, maxText+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(text) > maxText {
		return nil, fmt.Errorf("%s: larger than %d bytes", name, maxText)
	}
	return text, nil
}
