package wheel

import (
	"archive/zip"
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// A zip file lists its content twice: in the header in front of each member's data and in the
// central directory at the end. An installer that trusts one list and a scanner that trusts the
// other see different wheels. So this reader reads both lists. They have to agree and to account
// for every byte of the file. archive/zip trusts the directory and does not return offsets.
//
// Record layouts: PKWARE's APPNOTE.TXT 6.3.10, section 4.3.

// The length in bytes of the fixed part of each record, and the signature that it begins with.
const (
	localLen     = 30 // 4.3.7
	centralLen   = 46 // 4.3.12
	endLen       = 22 // 4.3.16
	end64Len     = 56 // 4.3.14, without extensible data
	locator64Len = 20 // 4.3.15

	localMagic      = "PK\x03\x04"
	centralMagic    = "PK\x01\x02"
	endMagic        = "PK\x05\x06"
	end64Magic      = "PK\x06\x06"
	locator64Magic  = "PK\x06\x07"
	descriptorMagic = "PK\x07\x08" // 4.3.9.3: optional
)

// General purpose flags (4.4.4).
const (
	flagEncrypted  = 1<<0 | 1<<6 | 1<<13 // the data, with strong encryption, or the headers too
	flagDescriptor = 1 << 3              // CRC and sizes follow the data
	flagPatch      = 1 << 5
	flagUTF8       = 1 << 11
	// flagsThatMatter are those that change how a member is read; the others show the compression
	// level.
	flagsThatMatter = flagEncrypted | flagDescriptor | flagPatch | flagUTF8
)

// Extra fields that override a header's values (4.5.3, 4.6.9).
const (
	extraZip64       = 0x0001
	extraUnicodePath = 0x7075
)

// File types in the upper half of a Unix mode, as stat(2) has them.
const (
	modeType      = 0o170000
	modeDirectory = 0o040000
	modeRegular   = 0o100000
)

var le = binary.LittleEndian

// zipMember is one entry of the central directory, directories included.
type zipMember struct {
	Member
	flags  uint16
	crc    uint32
	header int64 // offset of the local header
	data   int64 // offset of the data
}

func (m *zipMember) isDir() bool { return m.Name[len(m.Name)-1] == '/' }

// directory is the place of the central directory.
type directory struct {
	entries      uint64
	offset, size int64 // bytes
}

// readZip reads the headers of a zip file of size bytes and checks that they
// allow one reading only. The members come in the order of the directory.
func readZip(r io.ReaderAt, size int64) ([]zipMember, error) {
	dir, err := findDirectory(r, size)
	if err != nil {
		return nil, err
	}
	members, err := readDirectory(r, dir)
	if err != nil {
		return nil, err
	}
	return members, checkLocals(r, dir, members)
}

// findDirectory reads the record that ends the file, and its ZIP64 form.
func findDirectory(r io.ReaderAt, size int64) (directory, error) {
	tail := make([]byte, min(size, endLen+math.MaxUint16)) // a comment has at most 65,535 bytes
	if _, err := r.ReadAt(tail, size-int64(len(tail))); err != nil {
		return directory{}, err
	}
	// The signature of the last record must be where a whole record fits.
	i := bytes.LastIndex(tail[:max(0, len(tail)-endLen+len(endMagic))], []byte(endMagic))
	if size == 0 {
		return directory{}, errors.New("not a zip file: empty file")
	}
	if i < 0 {
		return directory{}, errors.New("not a zip file, or truncated")
	}
	if bytes.LastIndex(tail, []byte(endMagic)) != i {
		return directory{}, errors.New("zip: a second end record begins in the comment of the first")
	}
	end := tail[i:]
	at := size - int64(len(end))
	if comment := int(le.Uint16(end[20:])); endLen+comment != len(end) {
		return directory{}, fmt.Errorf("zip: the end record at byte %d has a comment of %d bytes, %d bytes follow",
			at, comment, len(end)-endLen)
	}
	disk, diskOfDir, here := le.Uint16(end[4:]), le.Uint16(end[6:]), le.Uint16(end[8:])
	entries, length, offset := uint64(le.Uint16(end[10:])), uint64(le.Uint32(end[12:])), uint64(le.Uint32(end[16:]))
	if at >= locator64Len {
		locator := make([]byte, locator64Len)
		if _, err := r.ReadAt(locator, at-locator64Len); err != nil {
			return directory{}, err
		}
		if string(locator[:4]) == locator64Magic {
			at -= locator64Len
			return findDirectory64(r, at, locator, entries, length, offset)
		}
	}
	if disk != 0 || diskOfDir != 0 || uint64(here) != entries {
		return directory{}, errors.New("zip: multi-volume archives are not supported")
	}
	return placeDirectory(at, entries, length, offset)
}

// findDirectory64 reads the ZIP64 end record, which must lie directly before its locator at byte
// at. It must agree with those values of the short record that fit there.
func findDirectory64(r io.ReaderAt, at int64, locator []byte, entries, length, offset uint64) (directory, error) {
	at -= end64Len
	if at < 0 || le.Uint64(locator[8:]) != uint64(at) {
		return directory{}, fmt.Errorf("zip: the ZIP64 end record is said to be at byte %d, not right before its locator",
			le.Uint64(locator[8:]))
	}
	end := make([]byte, end64Len)
	if _, err := r.ReadAt(end, at); err != nil {
		return directory{}, err
	}
	if string(end[:4]) != end64Magic || le.Uint64(end[4:]) != end64Len-12 {
		return directory{}, fmt.Errorf("zip: no ZIP64 end record of %d bytes at byte %d", end64Len, at)
	}
	if le.Uint32(end[16:]) != 0 || le.Uint32(end[20:]) != 0 || le.Uint64(end[24:]) != le.Uint64(end[32:]) ||
		le.Uint32(locator[4:]) != 0 || le.Uint32(locator[16:]) > 1 {
		return directory{}, errors.New("zip: multi-volume archives are not supported")
	}
	entries64, length64, offset64 := le.Uint64(end[32:]), le.Uint64(end[40:]), le.Uint64(end[48:])
	if entries != math.MaxUint16 && entries != entries64 || length != math.MaxUint32 && length != length64 ||
		offset != math.MaxUint32 && offset != offset64 {
		return directory{}, errors.New("zip: the end record contradicts the ZIP64 end record")
	}
	return placeDirectory(at, entries64, length64, offset64)
}

// placeDirectory checks that a directory ends at byte end, where the end
// record begins, and that reading it takes bounded memory.
func placeDirectory(end int64, entries, length, offset uint64) (directory, error) {
	switch {
	case offset > uint64(end) || length != uint64(end)-offset:
		return directory{}, fmt.Errorf("zip: the directory is said to have %d bytes from byte %d, but its end record is at byte %d",
			length, offset, end)
	case length > maxDirectory:
		return directory{}, fmt.Errorf("zip: the directory has %d bytes, more than %d", length, maxDirectory)
	case entries > maxMembers:
		return directory{}, fmt.Errorf("zip: %d members, limit %d", entries, maxMembers)
	case entries > length/centralLen:
		return directory{}, fmt.Errorf("zip: a directory of %d bytes cannot list %d members", length, entries)
	}
	return directory{entries, int64(offset), int64(length)}, nil
}

// readDirectory reads the whole central directory, and nothing after it.
func readDirectory(r io.ReaderAt, dir directory) ([]zipMember, error) {
	in := bufio.NewReaderSize(io.NewSectionReader(r, dir.offset, dir.size), 64<<10)
	members := make([]zipMember, 0, dir.entries)
	for i := range dir.entries {
		var h [centralLen]byte
		if _, err := io.ReadFull(in, h[:]); err != nil || string(h[:4]) != centralMagic {
			return nil, fmt.Errorf("zip: entry %d of %d in the directory is truncated or not valid", i+1, dir.entries)
		}
		text := make([]byte, int(le.Uint16(h[28:]))+int(le.Uint16(h[30:])))
		_, err := io.ReadFull(in, text)
		if err == nil {
			_, err = in.Discard(int(le.Uint16(h[32:]))) // a comment
		}
		if err != nil {
			return nil, fmt.Errorf("zip: entry %d of %d in the directory is truncated", i+1, dir.entries)
		}
		m, err := readCentral(h[:], string(text[:le.Uint16(h[28:])]), text[le.Uint16(h[28:]):])
		if err != nil {
			return nil, err
		}
		members = append(members, m)
	}
	if _, err := in.ReadByte(); err != io.EOF {
		return nil, fmt.Errorf("zip: the directory continues after its %d entries", dir.entries)
	}
	return members, nil
}

// readCentral reads one entry of the directory.
func readCentral(h []byte, name string, extra []byte) (zipMember, error) {
	m := zipMember{flags: le.Uint16(h[8:]), crc: le.Uint32(h[16:])}
	m.Name, m.Method = name, le.Uint16(h[10:])
	if why := badName(name); why != "" {
		return m, fmt.Errorf("%.80q: name %s", name, why)
	}
	zip64, err := readExtra(extra, name)
	if err != nil {
		return m, fmt.Errorf("%s: %w", name, err)
	}
	size, compressed, offset := uint64(le.Uint32(h[24:])), uint64(le.Uint32(h[20:])), uint64(le.Uint32(h[42:]))
	if _, err := readZip64Fields(zip64, &size, &compressed, &offset); err != nil {
		return m, fmt.Errorf("%s: %w", name, err)
	}
	if size > maxContent || compressed > math.MaxInt64 || offset > math.MaxInt64 {
		return m, fmt.Errorf("%s: %d bytes, compressed %d at byte %d: more than any wheel has",
			name, size, compressed, offset)
	}
	m.Size, m.Compressed, m.header = int64(size), int64(compressed), int64(offset)
	if err := m.checkKind(le.Uint16(h[34:]), le.Uint32(h[38:])); err != nil {
		return m, fmt.Errorf("%s: %w", name, err)
	}
	return m, nil
}

// checkKind rejects members other than regular files and directories, and impossible sizes.
// attributes has the mode of Unix in its upper half.
func (m *zipMember) checkKind(disk uint16, attributes uint32) error {
	kind := attributes >> 16 & modeType
	m.Mode = fs.FileMode(attributes>>16) & fs.ModePerm
	switch {
	case disk != 0:
		return errors.New("is in another volume")
	case m.flags&(flagEncrypted|flagPatch) != 0:
		return errors.New("is encrypted or a patch")
	case kind != 0 && kind != modeRegular && (kind != modeDirectory || !m.isDir()):
		return fmt.Errorf("is not a regular file: its mode is %06o", attributes>>16)
	case m.isDir() && m.Size != 0:
		return fmt.Errorf("is a directory with %d bytes", m.Size)
	case strings.ContainsFunc(m.Name, func(r rune) bool { return r >= utf8.RuneSelf }) && m.flags&flagUTF8 == 0:
		return errors.New("has a name that is neither ASCII nor marked as UTF-8")
	}
	switch m.Method {
	case zip.Store:
		if m.Size != m.Compressed {
			return fmt.Errorf("is stored, but has %d bytes instead of %d", m.Size, m.Compressed)
		}
		if m.flags&flagDescriptor != 0 && m.Size > 0 {
			return errors.New("is stored with a data descriptor: readers disagree on where the data ends")
		}
	case zip.Deflate:
		if m.Size/maxDeflate > m.Compressed {
			return fmt.Errorf("cannot have %d bytes: %d compressed bytes hold at most %d times as many",
				m.Size, m.Compressed, maxDeflate)
		}
	default:
		return fmt.Errorf("uses compression method %d; want stored (0) or deflated (8)", m.Method)
	}
	return nil
}

// readExtra walks over a header's extra fields and returns the ZIP64 one.
func readExtra(extra []byte, name string) (zip64 []byte, err error) {
	for len(extra) > 0 {
		if len(extra) < 4 || len(extra)-4 < int(le.Uint16(extra[2:])) {
			return nil, errors.New("has a truncated extra field")
		}
		id, body := le.Uint16(extra), extra[4:][:le.Uint16(extra[2:])]
		extra = extra[4+len(body):]
		switch id {
		case extraZip64:
			if zip64 != nil {
				return nil, errors.New("has two ZIP64 fields")
			}
			zip64 = body
		case extraUnicodePath: // version, CRC of the name in the header, name
			if len(body) < 5 || string(body[5:]) != name {
				return nil, errors.New("has a second name, in an extra field")
			}
		}
	}
	return zip64, nil
}

// readZip64Fields sets those fields that did not fit into 32 bits from a ZIP64 field, in order,
// and returns the rest of it.
func readZip64Fields(zip64 []byte, fields ...*uint64) ([]byte, error) {
	for _, f := range fields {
		if *f != math.MaxUint32 {
			continue
		}
		if len(zip64) < 8 {
			return nil, errors.New("has a missing or truncated ZIP64 field")
		}
		*f, zip64 = le.Uint64(zip64), zip64[8:]
	}
	return zip64, nil
}

// checkLocals compares each member's local header with the directory, and the places of all
// members with each other: each byte between byte 0 and the directory must belong to exactly one
// member. It fills in the offsets of their data.
func checkLocals(r io.ReaderAt, dir directory, members []zipMember) error {
	order := make([]*zipMember, len(members))
	for i := range members {
		order[i] = &members[i]
	}
	slices.SortFunc(order, func(a, b *zipMember) int { return cmp.Compare(a.header, b.header) })
	content := io.NewSectionReader(r, 0, dir.offset)
	pos := int64(0)
	for i, m := range order {
		switch {
		case m.header < pos:
			return fmt.Errorf("%s: begins at byte %d, inside of %s", m.Name, m.header, order[i-1].Name)
		case m.header > pos:
			return fmt.Errorf("%s: begins at byte %d; the %d bytes before it belong to no member",
				m.Name, m.header, m.header-pos)
		}
		next := dir.offset
		if i+1 < len(order) {
			next = order[i+1].header
		}
		var err error
		if pos, err = checkLocal(content, m, next); err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	if pos != dir.offset {
		return fmt.Errorf("zip: the %d bytes before the directory belong to no member", dir.offset-pos)
	}
	return nil
}

// checkLocal compares the local header of one member with its entry in the directory, and returns
// the offset of the member's end. next is the offset of the following member.
func checkLocal(content *io.SectionReader, m *zipMember, next int64) (end int64, err error) {
	var h [localLen]byte
	if _, err := content.ReadAt(h[:], m.header); err != nil || string(h[:4]) != localMagic {
		return 0, fmt.Errorf("has no local header at byte %d", m.header)
	}
	text := make([]byte, int(le.Uint16(h[26:]))+int(le.Uint16(h[28:])))
	m.data = m.header + localLen + int64(len(text))
	if _, err := content.ReadAt(text, m.header+localLen); err != nil || m.Compressed > content.Size()-m.data {
		return 0, fmt.Errorf("has a local header or data that reach into the directory at byte %d", content.Size())
	}
	name := string(text[:le.Uint16(h[26:])])
	if name != m.Name {
		return 0, fmt.Errorf("is called %q in its local header", name)
	}
	if method, flags := le.Uint16(h[8:]), le.Uint16(h[6:]); method != m.Method || (flags^m.flags)&flagsThatMatter != 0 {
		return 0, fmt.Errorf("has method %d and flags %04x in its local header, %d and %04x in the directory",
			method, flags, m.Method, m.flags)
	}
	zip64, err := readExtra(text[len(name):], name)
	if err != nil {
		return 0, err
	}
	size, compressed := uint64(le.Uint32(h[22:])), uint64(le.Uint32(h[18:]))
	rest, err := readZip64Fields(zip64, &size, &compressed)
	if err != nil {
		return 0, err
	}
	said := sizes{le.Uint32(h[14:]), size, compressed}
	if said != m.sizes() && (m.flags&flagDescriptor == 0 || !said.zeroOr(m.sizes())) {
		return 0, fmt.Errorf("has %s in its local header, %s in the directory", said, m.sizes())
	}
	// Some readers take the sizes from here even if they fit into the header.
	if len(rest) >= 16 && (le.Uint64(rest) != size || le.Uint64(rest[8:]) != compressed) {
		return 0, errors.New("has other sizes in the ZIP64 field of its local header")
	}
	end = m.data + m.Compressed
	if m.flags&flagDescriptor != 0 {
		return checkDescriptor(content, m, end, next)
	}
	return end, nil
}

// checkDescriptor reads the data descriptor between the data of m, which end at byte end, and the
// next member, and returns its end. It has four forms (4.3.9): with and without signature, 32-bit
// and 64-bit sizes.
func checkDescriptor(content *io.SectionReader, m *zipMember, end, next int64) (int64, error) {
	n := next - end
	if n < 0 {
		return end, nil // the next member overlaps m: checkLocals reports it
	}
	if n != 12 && n != 16 && n != 20 && n != 24 {
		return 0, fmt.Errorf("has %d bytes after its data, which are not a data descriptor", n)
	}
	d := make([]byte, n)
	if _, err := content.ReadAt(d, end); err != nil {
		return 0, err
	}
	if n == 16 || n == 24 {
		if string(d[:4]) != descriptorMagic {
			return 0, fmt.Errorf("has %d bytes after its data, which are not a data descriptor", n)
		}
		d = d[4:]
	}
	said := sizes{crc: le.Uint32(d)}
	if len(d) == 12 {
		said.compressed, said.size = uint64(le.Uint32(d[4:])), uint64(le.Uint32(d[8:]))
	} else {
		said.compressed, said.size = le.Uint64(d[4:]), le.Uint64(d[12:])
	}
	if said != m.sizes() {
		return 0, fmt.Errorf("has %s in its data descriptor, %s in the directory", said, m.sizes())
	}
	return next, nil
}

// sizes are the checksum and the sizes that a header claims for a member's data.
type sizes struct {
	crc              uint32
	size, compressed uint64
}

func (m *zipMember) sizes() sizes { return sizes{m.crc, uint64(m.Size), uint64(m.Compressed)} }

// zeroOr reports whether each value equals that of t, or is zero, which means that a later record
// holds it.
func (s sizes) zeroOr(t sizes) bool {
	return (s.crc == 0 || s.crc == t.crc) && (s.size == 0 || s.size == t.size) &&
		(s.compressed == 0 || s.compressed == t.compressed)
}

func (s sizes) String() string {
	return fmt.Sprintf("CRC %08x, %d bytes, compressed %d", s.crc, s.size, s.compressed)
}
