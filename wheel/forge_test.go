package wheel

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"hash/crc32"
	"math"
	"strings"
	"testing"
)

// small is the wheel that the tests bend.
const (
	smallName = "pkg-1.0-py3-none-any.whl"
	smallInfo = "pkg-1.0.dist-info/"
)

// forged is one member of a zip file whose every byte a test can choose.
type forged struct {
	name    string
	content string
	stored  bool
	data    []byte // compressed, where that is not what content becomes
	// What the headers have apart from what follows from the above.
	localName              string
	extra, localExtra      []byte
	descriptor             []byte
	mangleLocal, mangleDir func(header []byte) // the fixed part
	noLocal                bool                // the member is in the directory alone
	noDir                  bool                // the member is in front alone
	before                 string              // bytes between the last member and this one
}

// compressed returns the data of the member as they lie in the file.
func (m forged) compressed(t testing.TB) []byte {
	switch {
	case m.data != nil:
		return m.data
	case m.stored:
		return []byte(m.content)
	}
	return deflated(t, m.content)
}

func deflated(t testing.TB, content string) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestCompression)
	if err == nil {
		_, err = w.Write([]byte(content))
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// header returns the fields that local header and directory share, at off.
func (m forged) header(t testing.TB, h []byte, off int) {
	le.PutUint16(h[off:], 20)
	method := uint16(zip.Deflate)
	if m.stored {
		method = zip.Store
	}
	le.PutUint16(h[off+4:], method)
	le.PutUint32(h[off+10:], crc32.ChecksumIEEE([]byte(m.content)))
	le.PutUint32(h[off+14:], uint32(len(m.compressed(t))))
	le.PutUint32(h[off+18:], uint32(len(m.content)))
}

// forge writes a zip file of members; mangle may change its end record.
func forge(t testing.TB, members []forged, mangle func(end []byte) []byte) []byte {
	t.Helper()
	var file, dir bytes.Buffer
	entries := 0
	for _, m := range members {
		file.WriteString(m.before)
		at := uint32(file.Len())
		if !m.noLocal {
			writeLocal(t, &file, m)
		}
		if m.noDir {
			continue
		}
		entries++
		h := make([]byte, centralLen)
		copy(h, centralMagic)
		m.header(t, h, 6)
		le.PutUint16(h[4:], 3<<8|20) // made on Unix
		le.PutUint16(h[28:], uint16(len(m.name)))
		le.PutUint16(h[30:], uint16(len(m.extra)))
		le.PutUint32(h[38:], 0o100644<<16)
		if strings.HasSuffix(m.name, "/") {
			le.PutUint32(h[38:], 0o040755<<16)
		}
		le.PutUint32(h[42:], at)
		if m.mangleDir != nil {
			m.mangleDir(h)
		}
		dir.Write(append(append(h, m.name...), m.extra...))
	}
	end := make([]byte, endLen)
	copy(end, endMagic)
	le.PutUint16(end[8:], uint16(entries))
	le.PutUint16(end[10:], uint16(entries))
	le.PutUint32(end[12:], uint32(dir.Len()))
	le.PutUint32(end[16:], uint32(file.Len()))
	if mangle != nil {
		end = mangle(end)
	}
	return append(append(file.Bytes(), dir.Bytes()...), end...)
}

func writeLocal(t testing.TB, file *bytes.Buffer, m forged) {
	name := m.name
	if m.localName != "" {
		name = m.localName
	}
	h := make([]byte, localLen)
	copy(h, localMagic)
	m.header(t, h, 4)
	le.PutUint16(h[26:], uint16(len(name)))
	le.PutUint16(h[28:], uint16(len(m.localExtra)))
	if m.mangleLocal != nil {
		m.mangleLocal(h)
	}
	file.Write(append(append(h, name...), m.localExtra...))
	file.Write(m.compressed(t))
	file.Write(m.descriptor)
}

// sealed makes a wheel of files: what belongs into dist-info follows them.
func sealed(files ...forged) []forged {
	files = append(files,
		forged{name: smallInfo + "METADATA", content: "Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n\n"},
		forged{name: smallInfo + "WHEEL", content: "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
	)
	record := []RecordEntry{}
	for _, f := range files {
		if !strings.HasSuffix(f.name, "/") {
			record = append(record, recorded(f.name, f.content))
		}
	}
	record = append(record, RecordEntry{Path: smallInfo + "RECORD", Size: -1})
	return append(files, forged{name: smallInfo + "RECORD", content: string(FormatRecord(record))})
}

// recorded is the line of RECORD for a file.
func recorded(name, content string) RecordEntry {
	sum, _ := newHash("sha256")
	sum.Write([]byte(content))
	return RecordEntry{name, "sha256", RecordDigest(sum.Sum(nil)), int64(len(content))}
}

// patch16 and patch32 return a function that sets a field of a header.
func patch16(off int, v uint16) func([]byte) { return func(h []byte) { le.PutUint16(h[off:], v) } }
func patch32(off int, v uint32) func([]byte) { return func(h []byte) { le.PutUint32(h[off:], v) } }

// both returns a function that calls all of fs.
func both(fs ...func([]byte)) func([]byte) {
	return func(h []byte) {
		for _, f := range fs {
			f(h)
		}
	}
}

// ended is an end record changed by f.
func ended(f func([]byte)) func([]byte) []byte {
	return func(end []byte) []byte { f(end); return end }
}

// field is an extra field of 64-bit numbers.
func field(id uint16, values ...uint64) []byte {
	b := le.AppendUint16(nil, id)
	b = le.AppendUint16(b, uint16(8*len(values)))
	for _, v := range values {
		b = le.AppendUint64(b, v)
	}
	return b
}

// zip64End puts the ZIP64 records before an end record; short says whether
// that keeps its own numbers.
func zip64End(short bool, f func(end64, locator []byte)) func([]byte) []byte {
	return func(end []byte) []byte {
		entries, size, offset := uint64(le.Uint16(end[10:])), uint64(le.Uint32(end[12:])), uint64(le.Uint32(end[16:]))
		end64, locator := make([]byte, end64Len), make([]byte, locator64Len)
		copy(end64, end64Magic)
		le.PutUint64(end64[4:], end64Len-12)
		le.PutUint64(end64[24:], entries)
		le.PutUint64(end64[32:], entries)
		le.PutUint64(end64[40:], size)
		le.PutUint64(end64[48:], offset)
		copy(locator, locator64Magic)
		le.PutUint64(locator[8:], offset+size)
		le.PutUint32(locator[16:], 1)
		if !short {
			le.PutUint16(end[8:], math.MaxUint16)
			le.PutUint16(end[10:], math.MaxUint16)
			le.PutUint32(end[12:], math.MaxUint32)
			le.PutUint32(end[16:], math.MaxUint32)
		}
		if f != nil {
			f(end64, locator)
		}
		return append(append(end64, locator...), end...)
	}
}
