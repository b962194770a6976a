//go:build full

package wheel_test

import (
	"archive/zip"
	"bytes"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// A wheel of 3 GB, as flash-attn and vLLM may have, is read in a stream: in little memory, and in the time of its bytes.
func TestFullInsideThreeGigabytes(t *testing.T) {
	const size = 3_000_000_000
	library := wheeltest.Library(t, wheeltest.Import{Function: "f", Library: "libc.so.6", Version: "GLIBC_2.34"})
	zeros := make([]byte, 1<<20)
	sum := crc32.ChecksumIEEE([]byte(library))
	for left := size - len(library); left > 0; left -= len(zeros) {
		sum = crc32.Update(sum, crc32.IEEETable, zeros[:min(left, len(zeros))])
	}
	at := filepath.Join(t.TempDir(), "big-1.0-cp311-cp311-linux_x86_64.whl")
	file, err := os.Create(at)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z := zip.NewWriter(sparseFile{file})
	for name, text := range map[string]string{
		"big-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: big\nVersion: 1.0\n",
		"big-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nTag: cp311-cp311-linux_x86_64\n",
		"big-1.0.dist-info/RECORD":   "",
	} {
		w, err := z.Create(name)
		if err == nil {
			_, err = io.WriteString(w, text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	w, err := z.CreateRaw(&zip.FileHeader{
		Name: "big/_c.cpython-311-x86_64-linux-gnu.so", CRC32: sum, CompressedSize64: size, UncompressedSize64: size,
	})
	for left, data := size, []byte(library); err == nil && left > 0; data = zeros[:min(left, len(zeros))] {
		_, err = w.Write(data)
		left -= len(data)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	c, err := wheel.Inspect(t.Context(), at)
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	if err != nil || len(c.Extensions) != 1 || c.Extensions[0].Glibc != "2.34" || c.Extensions[0].Size != size {
		t.Fatalf("%+v, %v: want one extension of %d bytes that needs glibc 2.34", c.Extensions, err, size)
	}
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 64<<20 || took > 5*time.Minute {
		t.Errorf("%v and %d MiB: want less than 64 MiB, and minutes on the slowest disk", took, allocated>>20)
	}
	t.Logf("%v, %d KiB allocated", took, (after.TotalAlloc-before.TotalAlloc)>>10)
}

// sparseFile is a file that takes no space on disk for zeros.
type sparseFile struct{ *os.File }

func (f sparseFile) Write(p []byte) (int, error) {
	if bytes.Count(p, []byte{0}) < len(p) {
		return f.File.Write(p)
	}
	_, err := f.Seek(int64(len(p)), io.SeekCurrent)
	return len(p), err
}
