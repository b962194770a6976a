package wheel

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Part is a piece of a file, of which other versions of the file may have the same:
// who has one of those needs only the parts that differ.
type Part struct {
	Offset, Size int64
	Digest       [PartDigest]byte // the beginning of its sha256
}

// PartDigest is how many bytes of a part's sha256 are told. They only find parts
// that may be the same: what is put together of them has its own sha256.
const PartDigest = 8

// maxParts bounds how much is told of a file. DeepSpeed's wheel has a thousand parts.
const maxParts = 1 << 14

// xzMagic begins every stream of xz. Where it is in the data by chance too, a part
// more comes of it.
const xzMagic = "\xfd7zXZ\x00"

// Parts splits a wheel, or the byte code beside one, where its pieces begin: every
// file of a wheel with its header, and the directory behind them; every stream of
// byte code. A file that cannot be split is an error.
func Parts(file string) ([]Part, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	borders := zipBorders
	if strings.HasSuffix(file, ByteCodeSuffix) {
		borders = streamBorders
	}
	begins, err := borders(f, st.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	parts, err := split(f, st.Size(), begins)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return parts, nil
}

// zipBorders is where the members of a zip file begin, and its directory.
func zipBorders(r io.ReaderAt, size int64) ([]int64, error) {
	dir, members, err := listZip(r, size)
	if err != nil {
		return nil, err
	}
	begins := []int64{dir.offset}
	for _, m := range members {
		begins = append(begins, m.header)
	}
	return begins, nil
}

// maxByteCode bounds byte code that is split: it is held in memory.
const maxByteCode = 256 << 20

// streamBorders is where the streams of an xz file begin.
func streamBorders(r io.ReaderAt, size int64) ([]int64, error) {
	if size > maxByteCode {
		return nil, fmt.Errorf("it has %d bytes, more than %d", size, maxByteCode)
	}
	data := make([]byte, size)
	if _, err := r.ReadAt(data, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var begins []int64
	for at := 0; ; at += len(xzMagic) {
		i := bytes.Index(data[at:], []byte(xzMagic))
		if i < 0 {
			return begins, nil
		}
		at += i
		begins = append(begins, int64(at))
	}
}

// split makes a part of what lies between each two of the borders, and before the
// first and behind the last.
func split(r io.ReaderAt, size int64, begins []int64) ([]Part, error) {
	begins = slices.Compact(slices.SortedFunc(slices.Values(append(begins, 0, size)), cmp.Compare))
	if begins[0] < 0 || begins[len(begins)-1] > size {
		return nil, fmt.Errorf("it has %d bytes, and parts that begin elsewhere", size)
	}
	if len(begins)-1 > maxParts {
		return nil, fmt.Errorf("it has %d parts, more than %d", len(begins)-1, maxParts)
	}
	var parts []Part
	in, block := bufio.NewReaderSize(io.NewSectionReader(r, 0, size), 1<<18), make([]byte, 32<<10)
	h := sha256.New()
	for i, end := range begins[1:] {
		p := Part{Offset: begins[i], Size: end - begins[i]}
		h.Reset()
		if n, err := io.CopyBuffer(h, io.LimitReader(in, p.Size), block); err != nil || n != p.Size {
			return nil, fmt.Errorf("only %d of %d bytes at byte %d can be read: %w", n, p.Size, p.Offset, cmp.Or(err, io.ErrUnexpectedEOF))
		}
		p.Digest = [PartDigest]byte(h.Sum(nil))
		parts = append(parts, p)
	}
	return parts, nil
}
