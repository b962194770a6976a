package pipeline

import (
	"archive/tar"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// tarFile makes a tar with the given empty files.
func tarFile(t *testing.T, names ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "base.tar")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	for _, n := range names {
		if err := w.WriteHeader(&tar.Header{Name: n, Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestNewBase(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	for arg, want := range map[string]Base{
		"debian:bookworm-slim":                {Ref: "debian:bookworm-slim"},
		"registry.example:5000/a/b@" + digest: {Ref: "registry.example:5000/a/b@" + digest, Digest: digest},
	} {
		if got, err := NewBase(arg); err != nil || got != want {
			t.Errorf("%s: %+v, %v", arg, got, err)
		}
	}
	rootfs := tarFile(t, "./etc/debian_version", "./bin/sh")
	if b, err := NewBase(rootfs); err != nil || b.OCI || b.File != rootfs || !strings.HasPrefix(b.Digest, "sha256:") || b.Ref != "base.tar" {
		t.Errorf("%+v, %v", b, err)
	}
	if b, err := NewBase(tarFile(t, "blobs/sha256/00", "oci-layout", "index.json")); err != nil || !b.OCI {
		t.Errorf("%+v, %v", b, err)
	}
}

func TestNewBaseRefuses(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("no tar ", 400)), 0o644); err != nil {
		t.Fatal(err)
	}
	for arg, want := range map[string]string{
		"/nowhere/base.tar": "neither a file",
		"base.tar":          "neither a file",
		"Not An Image":      "nor an image reference",
		"a\nb":              "nor an image reference",
		"":                  "nor an image reference",
		t.TempDir():         "not a regular file",
		text:                "not a tar",
	} {
		_, err := NewBase(arg)
		if fault.ExitCode(err) != 2 || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", arg, err, want)
		}
	}
}
