package relay

import (
	"crypto/sha256"
	"errors"
	"io"
	"os"

	"github.com/dsbuild/dsbuild/fleet"
)

// pieces are the parts of a file, which travel one by one. Each but the last has size bytes.
type pieces struct {
	size  int64
	count int
	sums  []byte // their sha256, concatenated
}

// Bounds of a piece in bytes. A chain of n nodes needs the time of n pieces to fill, and every
// node gets the list of all digests from the controller: of 100 MB, pieces of about 64 KiB make the
// sum of both smallest.
const (
	leastPiece = 64 << 10
	maxPiece   = 4 << 20
	usualCount = 2048
)

// cutFile reads a file and returns its pieces.
func cutFile(f fleet.LocalFile) (pieces, error) {
	p := pieces{size: min(max(f.Size/usualCount, leastPiece), maxPiece)}
	in, err := os.Open(f.Path)
	if err != nil {
		return p, err
	}
	defer in.Close()
	block := make([]byte, p.size)
	for {
		n, err := io.ReadFull(in, block)
		if n > 0 {
			sum := sha256.Sum256(block[:n])
			p.sums, p.count = append(p.sums, sum[:]...), p.count+1
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return p, nil
		}
		if err != nil {
			return p, err
		}
	}
}

// bytes is the number of bytes in the pieces from one number up to, but not with, another.
func (p pieces) bytes(from, to int, size int64) int64 {
	return min(int64(to)*p.size, size) - min(int64(from)*p.size, size)
}
