package image

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// verifier reads a blob to its end and compares size and digest with the descriptor.
type verifier struct {
	r    io.Reader
	want v1.Descriptor
	sum  hash.Hash
	n    int64
}

func newVerifier(r io.Reader, want v1.Descriptor) *verifier {
	return &verifier{r: r, want: want, sum: sha256.New()}
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.r.Read(p)
	v.sum.Write(p[:n])
	v.n += int64(n)
	if errors.Is(err, io.EOF) {
		if have := hashOf(v.sum); v.n != v.want.Size || have != v.want.Digest {
			return n, fmt.Errorf("the layer %s has %d bytes with the digest %s instead of %d bytes", v.want.Digest, v.n, have, v.want.Size)
		}
	}
	return n, err
}
