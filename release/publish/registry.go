package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// The types of an artifact, as ORAS makes them: an empty configuration, and a layer for each file,
// which an annotation names.
const (
	ArtifactType = "application/vnd.dsbuild.wheel.v1"
	emptyType    = "application/vnd.oci.empty.v1+json"
	fileType     = "application/octet-stream"
	titleKey     = "org.opencontainers.image.title"
)

// registry is a repository of an OCI registry: each wheel is an artifact under a tag. The manifest
// that names the files is sent after them.
type registry struct {
	run    *run
	repo   name.Repository
	pusher *remote.Pusher
	puller *remote.Puller
}

func (r *run) openRegistry() (place, error) {
	r.access = "dsbuild takes the login of docker login, podman login or oras login (DOCKER_CONFIG, credential helpers)"
	repo, err := name.NewRepository(r.To.name)
	if err != nil {
		return nil, r.refuse("", "%w", err)
	}
	auth, err := authn.DefaultKeychain.Resolve(repo)
	var said *authn.AuthConfig
	if err == nil {
		said, err = auth.Authorization()
	}
	if err != nil {
		return nil, fault.WithHint(fmt.Errorf("%s: %w", repo, err), "log in with docker login, podman login or oras login")
	}
	r.secrets.addLogin(login{said.Username, said.Password})
	r.secrets.add(said.Auth, said.IdentityToken, said.RegistryToken)
	options := []remote.Option{
		remote.WithAuth(auth), remote.WithTransport(r.http), remote.WithUserAgent("dsbuild"),
		remote.WithRetryBackoff(remote.Backoff{Steps: 1}), // package httpclient does it
	}
	p := registry{run: r, repo: repo}
	if p.pusher, err = remote.NewPusher(options...); err != nil {
		return nil, err
	}
	p.puller, err = remote.NewPuller(options...)
	return p, err
}

var notInTag = regexp.MustCompile(`[^A-Za-z0-9_.-]`)

// longestTag is the limit of the registries' specification.
const longestTag = 128

// tagOf returns the tag of a wheel: its name with _ for each character that no tag may have.
func tagOf(wheel string) string {
	tag := notInTag.ReplaceAllString(strings.TrimSuffix(wheel, ".whl"), "_")
	if len(tag) <= longestTag {
		return tag
	}
	sum, _, _ := v1.SHA256(strings.NewReader(wheel)) // a string's reader does not fail
	return tag[:longestTag-17] + "_" + sum.Hex[:16]
}

// read returns the artifact of a wheel, nil if there is none.
func (p registry) read(ctx context.Context, w wheelFiles) (found *v1.Manifest, err error) {
	err = p.run.try(ctx, func(ctx context.Context, _ int) error {
		got, err := p.puller.Get(ctx, p.repo.Tag(tagOf(w.main().Name)))
		if statusOf(err) == http.StatusNotFound {
			found = nil
			return nil
		}
		if err != nil {
			return err
		}
		found = &v1.Manifest{}
		if err := json.Unmarshal(got.Manifest, found); err != nil {
			return fmt.Errorf("%s: its manifest: %w", p.repo.Tag(tagOf(w.main().Name)), err)
		}
		return nil
	})
	return found, err
}

func (p registry) look(ctx context.Context, w wheelFiles) ([]state, error) {
	found, err := p.read(ctx, w)
	if err != nil {
		return nil, err
	}
	return statesIn(found, w), nil
}

// statesIn compares an artifact with a wheel's files.
func statesIn(found *v1.Manifest, w wheelFiles) []state {
	states := make([]state, len(w))
	if found == nil {
		return states
	}
	for i, f := range w {
		if found.ArtifactType != ArtifactType {
			states[i] = other // an image, or an artifact of another program
			continue
		}
		for _, layer := range found.Layers {
			if layer.Annotations[titleKey] != f.Name {
				continue
			}
			states[i] = other
			if layer.Digest.String() == "sha256:"+f.SHA256 {
				states[i] = same
			}
		}
	}
	return states
}

func (p registry) put(ctx context.Context, w wheelFiles, files []File, sent func(int64)) error {
	for _, f := range files {
		err := p.run.try(ctx, func(ctx context.Context, _ int) error {
			return f.withBody(sent, func(b *body) error { return p.pusher.Upload(ctx, p.repo, fileLayer{f, b}) })
		})
		if err != nil {
			return err
		}
	}
	empty := static.NewLayer([]byte("{}"), emptyType)
	err := p.run.try(ctx, func(ctx context.Context, _ int) error { return p.pusher.Upload(ctx, p.repo, empty) })
	if err != nil {
		return err
	}
	found, err := p.read(ctx, w) // others may have changed it
	if err != nil {
		return err
	}
	for i, now := range statesIn(found, w) {
		if now == other {
			return takenError("", w[i].Name)
		}
	}
	text, err := artifact(found, w)
	if err != nil {
		return err
	}
	return p.run.try(ctx, func(ctx context.Context, _ int) error {
		return p.pusher.Put(ctx, p.repo.Tag(tagOf(w.main().Name)), text)
	})
}

// artifact returns the manifest of a wheel: its files, and those that the artifact had before.
func artifact(found *v1.Manifest, w wheelFiles) (rawManifest, error) {
	empty, size, err := v1.SHA256(strings.NewReader("{}"))
	if err != nil {
		return nil, err
	}
	m := v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: ArtifactType,
		Config: v1.Descriptor{MediaType: emptyType, Digest: empty, Size: size, Data: []byte("{}")},
	}
	named := map[string]bool{}
	if found != nil {
		m.Layers = found.Layers
		for _, layer := range found.Layers {
			named[layer.Annotations[titleKey]] = true
		}
	}
	for _, f := range w {
		if !named[f.Name] {
			m.Layers = append(m.Layers, v1.Descriptor{
				MediaType: fileType, Size: f.Size, Digest: v1.Hash{Algorithm: "sha256", Hex: f.SHA256},
				Annotations: map[string]string{titleKey: path.Base(f.Name)},
			})
		}
	}
	return json.Marshal(m)
}

// rawManifest is a manifest to send.
type rawManifest []byte

// RawManifest implements remote.Taggable.
func (m rawManifest) RawManifest() ([]byte, error) { return m, nil }

// MediaType tells the library of which type the manifest is.
func (m rawManifest) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// fileLayer is a file as a layer.
type fileLayer struct {
	file File
	body *body
}

// Digest implements v1.Layer.
func (l fileLayer) Digest() (v1.Hash, error) {
	return v1.Hash{Algorithm: "sha256", Hex: l.file.SHA256}, nil
}

// DiffID implements v1.Layer.
func (l fileLayer) DiffID() (v1.Hash, error) { return l.Digest() }

// Compressed implements v1.Layer. The library reads it once: it tries each upload only once.
func (l fileLayer) Compressed() (io.ReadCloser, error) { return io.NopCloser(l.body), nil }

// Uncompressed implements v1.Layer.
func (l fileLayer) Uncompressed() (io.ReadCloser, error) { return l.Compressed() }

// Size implements v1.Layer.
func (l fileLayer) Size() (int64, error) { return l.file.Size, nil }

// MediaType implements v1.Layer.
func (l fileLayer) MediaType() (types.MediaType, error) { return fileType, nil }
