package image

import (
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"slices"
	"strings"

	"deps.dev/util/pypi"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// sbomPackage is a package by its package URL.
type sbomPackage struct{ kind, name, version string }

// factsOfSBOM returns the facts in a list of packages: SPDX or CycloneDX, alone or in an in-toto
// statement. A document of another form says nothing.
func factsOfSBOM(text []byte) *evidence {
	e := newEvidence()
	hasTorch, hasDeepSpeed := false, false
	for _, p := range packagesOf(text) {
		switch source := "the SBOM of the base"; {
		case p.kind == "pypi" && p.name == "torch":
			hasTorch = true
			e.addTorch(p.version, source)
		case p.kind == "pypi" && p.name == "deepspeed":
			hasDeepSpeed = true
			e.add(FactDeepSpeed, p.version, source)
		case p.kind == "generic" && p.name == "python":
			e.add(FactPython, p.version, source)
		case p.kind == "deb" && p.name == "libc6", p.kind == "rpm" && p.name == "glibc":
			e.add(FactGlibc, minor(p.version), source)
		}
	}
	if hasTorch && !hasDeepSpeed {
		e.add(FactDeepSpeed, None, "the SBOM of the base")
	}
	return e
}

// packagesOf reads the packages of an SBOM.
func packagesOf(text []byte) []sbomPackage {
	var document struct {
		Predicate json.RawMessage `json:"predicate"`
		Packages  []struct {
			ExternalRefs []struct {
				ReferenceLocator string `json:"referenceLocator"`
			} `json:"externalRefs"`
		} `json:"packages"`
		Components []struct {
			PURL string `json:"purl"`
		} `json:"components"`
	}
	if err := json.Unmarshal(text, &document); err != nil {
		return nil
	}
	if len(document.Predicate) > 0 && len(document.Packages)+len(document.Components) == 0 {
		inner := document.Predicate
		document.Predicate = nil
		if json.Unmarshal(inner, &document) != nil {
			return nil
		}
	}
	var all []sbomPackage
	add := func(purl string) {
		if p, ok := parsePURL(purl); ok && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	for _, p := range document.Packages {
		for _, ref := range p.ExternalRefs {
			add(ref.ReferenceLocator)
		}
	}
	for _, c := range document.Components {
		add(c.PURL)
	}
	return all
}

// parsePURL reads pkg:pypi/torch@2.15.0%2Bcu132 and pkg:deb/debian/libc6@2.36-9?arch=amd64.
func parsePURL(purl string) (p sbomPackage, ok bool) {
	rest, ok := strings.CutPrefix(purl, "pkg:")
	rest, _, _ = strings.Cut(rest, "#")
	rest, _, _ = strings.Cut(rest, "?")
	place, version, hasVersion := strings.Cut(rest, "@")
	kind, name, hasName := strings.Cut(place, "/")
	if !ok || !hasVersion || !hasName {
		return p, false
	}
	name = name[strings.LastIndexByte(name, '/')+1:]
	if kind == "pypi" {
		name = pypi.CanonPackageName(name)
	}
	version, err := url.PathUnescape(version)
	return sbomPackage{kind, name, version}, err == nil
}

// readSBOM returns the SBOM of a base in a registry, nil if there is none that is small enough:
// an attestation in the index, as BuildKit writes it, or one that refers to the image.
func readSBOM(b *base, options []remote.Option) ([]byte, error) {
	for _, d := range b.others {
		if d.Annotations["vnd.docker.reference.digest"] != b.digest.String() || !d.MediaType.IsImage() {
			continue
		}
		attested, err := b.fetch(d)
		if err != nil {
			return nil, err
		}
		return readStatement(attested)
	}
	index, err := remote.Referrers(b.ref.Context().Digest(b.digest.String()), options...)
	if err != nil {
		return nil, nil //nolint:nilerr // a registry need not know referrers
	}
	m, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, d := range m.Manifests {
		if !isSBOM(d.ArtifactType) {
			continue
		}
		attached, err := remote.Image(b.ref.Context().Digest(d.Digest.String()), options...)
		if err != nil {
			return nil, err
		}
		return readStatement(attached)
	}
	return nil, nil
}

// isSBOM reports whether a media type or a type of statements is that of an SBOM.
func isSBOM(kind string) bool {
	kind = strings.ToLower(kind)
	return strings.Contains(kind, "spdx") || strings.Contains(kind, "cyclonedx")
}

// readStatement returns the first small layer with an SBOM.
func readStatement(image v1.Image) ([]byte, error) {
	m, err := image.Manifest()
	if err != nil {
		return nil, err
	}
	for _, d := range m.Layers {
		if !isSBOM(d.Annotations["in-toto.io/predicate-type"]) && !isSBOM(string(d.MediaType)) || d.Size > readBudget {
			continue
		}
		layer, err := image.LayerByDigest(d.Digest)
		if err != nil {
			return nil, err
		}
		in, err := layer.Compressed()
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(io.LimitReader(in, readBudget))
		return text, errors.Join(err, in.Close())
	}
	return nil, nil
}
