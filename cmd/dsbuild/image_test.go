package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// makeBase is "mkbase FILE NAME=TEXT...": an image with these files, as docker save writes it.
func makeBase(file string, files []string) error {
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	for _, f := range files {
		path, content, _ := strings.Cut(f, "=")
		err := w.WriteHeader(&tar.Header{Name: path, Mode: 0o644, Size: int64(len(content))})
		_, writeErr := io.WriteString(w, content)
		if err := errors.Join(err, writeErr); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text.Bytes())), nil })
	if err != nil {
		return err
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{Architecture: "amd64", OS: "linux", RootFS: v1.RootFS{Type: "layers"}})
	if err != nil {
		return err
	}
	if img, err = mutate.AppendLayers(img, layer); err != nil {
		return err
	}
	tag, err := name.NewTag("base:1")
	if err != nil {
		return err
	}
	return tarball.WriteToFile(file, tag, img)
}
