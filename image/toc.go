package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// Limits for a base in a registry.
const (
	readBudget   = 768 << 10 // bytes of its layers and documents
	maxTOC       = 32 << 20  // bytes of a table of contents, unpacked
	maxTOCFile   = 256 << 10 // bytes of a file that is read from a layer
	maxWholeSize = 64 << 10  // bytes of a layer without table of contents that is read as a whole
)

// Annotations of zstd:chunked layers: the digest of the table of contents as it is stored, and its
// place, OFFSET:LENGTH:UNPACKED:1.
const (
	chunkedDigest = "io.github.containers.zstd-chunked.manifest-checksum"
	chunkedPlace  = "io.github.containers.zstd-chunked.manifest-position"
)

// errBudget ends the reading of a base: more is not worth it.
var errBudget = errors.New("more than dsbuild reads of a base in a registry")

// rangeReader reads parts of blobs, within a budget.
type rangeReader struct {
	ctx    context.Context //nolint:containedctx // of the one survey that it serves
	client *http.Client
	repo   name.Repository
	left   int64
}

// newRangeReader logs in to the registry of a repository.
func newRangeReader(ctx context.Context, repo name.Repository, t http.RoundTripper) (*rangeReader, error) {
	auth, err := authn.Resolve(ctx, authn.DefaultKeychain, repo)
	if err != nil {
		return nil, err
	}
	t, err = transport.NewWithContext(ctx, repo.Registry, auth, t, []string{repo.Scope(transport.PullScope)})
	if err != nil {
		return nil, err
	}
	return &rangeReader{ctx, &http.Client{Transport: t}, repo, readBudget}, nil
}

// read returns size bytes of a blob.
func (r *rangeReader) read(blob v1.Hash, offset, size int64) ([]byte, error) {
	if size <= 0 || offset < 0 || size > r.left {
		return nil, errBudget
	}
	r.left -= size
	at := fmt.Sprintf("%s://%s/v2/%s/blobs/%s", r.repo.Scheme(), r.repo.RegistryStr(), r.repo.RepositoryStr(), blob)
	req, err := http.NewRequestWithContext(r.ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, offset+size-1))
	answer, err := r.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusOK { // the whole blob would follow
		return nil, errors.New("the registry ignores ranges")
	}
	if err := transport.CheckError(answer, http.StatusPartialContent); err != nil {
		return nil, err
	}
	data := make([]byte, size)
	_, err = io.ReadFull(answer.Body, data)
	return data, err
}

// tocDecompressor is the interface of both kinds of tables.
type tocDecompressor interface {
	estargz.Decompressor
	DecompressTOC(r io.Reader) (io.ReadCloser, error)
}

// tableOf returns how the table of contents of a layer is read; nil if it has none.
func tableOf(d v1.Descriptor) tocDecompressor {
	switch {
	case d.Annotations[chunkedDigest] != "":
		return new(zstdchunked.Decompressor)
	case d.Annotations[estargz.TOCJSONDigestAnnotation] != "":
		return new(estargz.GzipDecompressor)
	}
	return nil
}

// listRemote lists the files of a base in a registry, if every layer has a table of contents or
// is small. Otherwise it reads nothing and returns nil: of a file in one layer nobody knows
// whether a later layer replaces it.
func listRemote(ctx context.Context, b *base, t http.RoundTripper) (listing, error) {
	m, err := b.image.Manifest()
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(m.Layers, func(d v1.Descriptor) bool { return tableOf(d) == nil && d.Size > maxWholeSize }) {
		return nil, nil //nolint:nilnil // nothing is known
	}
	r, err := newRangeReader(ctx, b.ref.Context(), t)
	if err != nil {
		return nil, err
	}
	all := listing{}
	for _, d := range m.Layers {
		changes, err := r.listLayer(ctx, b.image, d)
		if err != nil {
			return nil, fmt.Errorf("the files of layer %s: %w", d.Digest, err)
		}
		all.apply(changes)
	}
	return all, nil
}

// listLayer lists one layer by its table of contents, or reads it.
func (r *rangeReader) listLayer(ctx context.Context, image v1.Image, d v1.Descriptor) (*layerFiles, error) {
	if table := tableOf(d); table != nil {
		toc, err := r.readTable(d, table)
		if err != nil {
			return nil, err
		}
		return r.listTable(d, table, toc), nil
	}
	if r.left -= d.Size; r.left < 0 {
		return nil, errBudget
	}
	layer, err := image.LayerByDigest(d.Digest)
	if err != nil {
		return nil, err
	}
	in, err := layer.Uncompressed()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return listTar(ctx, in)
}

// readTable reads a table of contents and checks the digest that the manifest has of it.
func (r *rangeReader) readTable(d v1.Descriptor, table tocDecompressor) (*estargz.JTOC, error) {
	offset, size, err := r.findTable(d, table)
	if err != nil {
		return nil, err
	}
	packed, err := r.read(d.Digest, offset, size)
	if err != nil {
		return nil, err
	}
	in, err := table.DecompressTOC(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, maxTOC+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxTOC:
		return nil, errBudget
	}
	want, have := d.Annotations[estargz.TOCJSONDigestAnnotation], sha256.Sum256(text)
	if checksum := d.Annotations[chunkedDigest]; checksum != "" {
		want, have = checksum, sha256.Sum256(packed)
	}
	if got := "sha256:" + hex.EncodeToString(have[:]); got != want {
		return nil, fmt.Errorf("its table of contents has the digest %s instead of %.80q", got, want)
	}
	toc := new(estargz.JTOC)
	return toc, json.Unmarshal(text, toc)
}

// findTable returns the place of a table of contents: by the manifest, or by the end of the layer.
func (r *rangeReader) findTable(d v1.Descriptor, table tocDecompressor) (offset, size int64, err error) {
	if place := d.Annotations[chunkedPlace]; place != "" {
		var unpacked, kind int64
		if _, err := fmt.Sscanf(place, "%d:%d:%d:%d", &offset, &size, &unpacked, &kind); err != nil || kind != 1 {
			return 0, 0, fmt.Errorf("the place of its table of contents is %.80q", place)
		}
		return offset, size, nil
	}
	footerSize := table.FooterSize()
	footer, err := r.read(d.Digest, d.Size-footerSize, footerSize)
	if err != nil {
		return 0, 0, err
	}
	_, offset, size, err = table.ParseFooter(footer)
	if size <= 0 {
		size = d.Size - footerSize - offset
	}
	return offset, size, err
}

// listTable lists the files of a table of contents.
func (r *rangeReader) listTable(d v1.Descriptor, table tocDecompressor, toc *estargz.JTOC) *layerFiles {
	changes := &layerFiles{added: map[string]entry{}}
	kinds := map[string]byte{"reg": tar.TypeReg, "symlink": tar.TypeSymlink, "hardlink": tar.TypeLink}
	for i, e := range toc.Entries {
		if e == nil || kinds[e.Type] == 0 {
			continue
		}
		changes.add(e.Name, kinds[e.Type], e.LinkName, func() ([]byte, error) {
			return r.readFile(d, table, e, toc.Entries[i+1:])
		})
	}
	return changes
}

// readFile reads a small file from a layer and checks its digest. A large one reads as empty.
func (r *rangeReader) readFile(d v1.Descriptor, table tocDecompressor, e *estargz.TOCEntry, later []*estargz.TOCEntry) ([]byte, error) {
	if e.Type != "reg" || e.Size <= 0 || e.Size > maxTOCFile {
		return nil, nil
	}
	end := min(d.Size, e.Offset+maxTOCFile+4096)
	for _, next := range later {
		if next != nil && next.Offset > e.Offset {
			end = min(end, next.Offset)
			break
		}
	}
	packed, err := r.read(d.Digest, e.Offset, end-e.Offset)
	if err != nil {
		return nil, err
	}
	in, err := table.Reader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.Name, err)
	}
	defer in.Close()
	if _, err := io.CopyN(io.Discard, in, e.InnerOffset); err != nil {
		return nil, fmt.Errorf("%s: %w", e.Name, err)
	}
	data := make([]byte, e.Size)
	if _, err := io.ReadFull(in, data); err != nil {
		return nil, fmt.Errorf("%s: %w", e.Name, err)
	}
	if sum := sha256.Sum256(data); "sha256:"+hex.EncodeToString(sum[:]) != e.Digest {
		return nil, fmt.Errorf("%s: its digest is not that of the table of contents", e.Name)
	}
	return data, nil
}
