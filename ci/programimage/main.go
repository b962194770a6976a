// Command programimage puts the programs of a release into a container image for Linux on both CPUs. Besides them the
// image has only the certificates of public CAs, an account and the licenses.
//
//	SOURCE_DATE_EPOCH=1764190000 bin/ci/programimage bin/release
//
// It runs at the root of the checkout, after goreleaser, whose list of programs it reads. The image is an OCI layout in
// the release's subdirectory image. It is reproducible from the programs and the time.
package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

func main() {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if len(os.Args) != 2 || err != nil {
		fmt.Fprintln(os.Stderr, "usage: SOURCE_DATE_EPOCH=SECONDS programimage FOLDER")
		os.Exit(2)
	}
	digest, err := writeImage(os.Args[1], time.Unix(seconds, 0).UTC())
	if err != nil {
		fmt.Fprintln(os.Stderr, "programimage:", err)
		os.Exit(1)
	}
	fmt.Println(digest)
}

// artifact is an entry of artifacts.json, a file of a release.
type artifact struct{ Type, Goos, Goarch, Path string }

// writeImage writes the image of a release into its directory and returns the digest.
func writeImage(release string, at time.Time) (v1.Hash, error) {
	var about struct{ Version, Commit string }
	var made []artifact
	for file, into := range map[string]any{"metadata.json": &about, "artifacts.json": &made} {
		text, err := os.ReadFile(filepath.Join(release, file))
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			return v1.Hash{}, err
		}
	}
	labels := map[string]string{
		"org.opencontainers.image.title":       "dsbuild",
		"org.opencontainers.image.description": "Builds DeepSpeed wheels with precompiled ops, installs them on every node of a cluster, and proves that all nodes run the same",
		"org.opencontainers.image.source":      "https://github.com/dsbuild/dsbuild",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     about.Version,
		"org.opencontainers.image.revision":    about.Commit,
	}
	slices.SortFunc(made, func(x, y artifact) int { return strings.Compare(x.Goarch, y.Goarch) }) // they came as they were ready
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, m := range made {
		if m.Type != "Binary" || m.Goos != "linux" {
			continue
		}
		image, err := newImage(m.Path, m.Goarch, labels, at)
		if err != nil {
			return v1.Hash{}, err
		}
		platform := &v1.Platform{OS: m.Goos, Architecture: m.Goarch}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	index = mutate.Annotations(index, labels).(v1.ImageIndex) //nolint:forcetypeassert,errcheck // of an index
	folder := filepath.Join(release, "image")
	if err := os.RemoveAll(folder); err != nil {
		return v1.Hash{}, err
	}
	if _, err := layout.Write(folder, index); err != nil {
		return v1.Hash{}, err
	}
	return index.Digest()
}

// account is the uid of the program, unless docker run --user sets another.
const account = 65532

// newImage returns the image of one program.
func newImage(program, cpu string, labels map[string]string, at time.Time) (v1.Image, error) {
	text, err := newLayer(program, at)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layer)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", cpu, v1.Time{Time: at}
	config.History = []v1.History{{Created: config.Created, CreatedBy: "ci/programimage"}}
	config.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/dsbuild"}, User: fmt.Sprintf("%d:%d", account, account), WorkingDir: "/work",
		Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/home/dsbuild"}, Labels: labels,
	}
	return mutate.ConfigFile(image, config)
}

// newLayer returns the only layer. Its directories are world-writable for docker run --user.
func newLayer(program string, at time.Time) ([]byte, error) {
	var authorities bytes.Buffer
	for root := range bundle.Roots() {
		if err := pem.Encode(&authorities, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	passwd := fmt.Sprintf("root:x:0:0::/root:/sbin/nologin\ndsbuild:x:%d:%d::/home/dsbuild:/sbin/nologin\n", account, account)
	read := map[string][]byte{}
	for _, name := range []string{program, "LICENSE", "NOTICE"} {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		read[name] = text
	}
	var out bytes.Buffer
	t := tar.NewWriter(&out)
	for _, f := range []struct {
		name string // a folder ends in a slash
		mode int64
		text []byte
	}{
		{"home/dsbuild/", 0o1777, nil},
		{"tmp/", 0o1777, nil},
		{"work/", 0o1777, nil},
		{"etc/passwd", 0o644, []byte(passwd)},
		{"etc/ssl/certs/ca-certificates.crt", 0o644, authorities.Bytes()},
		{"usr/bin/dsbuild", 0o755, read[program]},
		{"usr/share/doc/dsbuild/copyright", 0o644, read["LICENSE"]},
		{"usr/share/doc/dsbuild/NOTICE", 0o644, read["NOTICE"]},
	} {
		// Without a type, the slash decides it.
		if err := t.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.text)), ModTime: at}); err != nil {
			return nil, err
		}
		if _, err := t.Write(f.text); err != nil {
			return nil, err
		}
	}
	err := t.Close()
	return out.Bytes(), err
}
