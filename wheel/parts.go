package wheel

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"strings"
)

// Part is a piece of a file, of which other versions of the file may have the same:
// who has one of those needs only the parts that differ.
type Part struct {
	Offset, Size int64
	Tag          PartTag
}

// PartTag is what a part is found by: its size modulo 4 GiB and its CRC-32, both
// big-endian. It only finds parts that may be the same: what is put
// together of them has its own sha256, and that of each part would cost more.
type PartTag [8]byte

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

// maxByteCode bounds byte code that is split: a node reads no more of it either.
const maxByteCode = 256 << 20

// streamBorders is where the streams of an xz file begin.
func streamBorders(r io.ReaderAt, size int64) ([]int64, error) {
	if size > maxByteCode {
		return nil, fmt.Errorf("it has %d bytes, more than %d", size, maxByteCode)
	}
	var begins []int64
	block := make([]byte, 64<<10)
	overlap := len(xzMagic) - 1 // for one that begins in a block and ends in the next
	for at := int64(0); at < size; at += int64(len(block) - overlap) {
		n, err := r.ReadAt(block[:min(int64(len(block)), size-at)], at)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		for from := 0; ; from += len(xzMagic) {
			i := bytes.Index(block[from:n], []byte(xzMagic))
			if i < 0 {
				break
			}
			from += i
			begins = append(begins, at+int64(from))
		}
	}
	return begins, nil
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
	crc := crc32.NewIEEE()
	for i, end := range begins[1:] {
		p := Part{Offset: begins[i], Size: end - begins[i]}
		crc.Reset()
		if n, err := io.CopyBuffer(crc, io.LimitReader(in, p.Size), block); err != nil || n != p.Size {
			return nil, fmt.Errorf("only %d of %d bytes at byte %d can be read: %w", n, p.Size, p.Offset, cmp.Or(err, io.ErrUnexpectedEOF))
		}
		binary.BigEndian.PutUint32(p.Tag[:], uint32(p.Size)) //nolint:gosec // modulo is meant
		binary.BigEndian.PutUint32(p.Tag[4:], crc.Sum32())
		parts = append(parts, p)
	}
	return parts, nil
}
