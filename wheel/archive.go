package wheel

import (
	"archive/zip"
	"bufio"
	"compress/flate"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// These limits bound the time and memory of reading a hostile file. Real wheels are far below them.
const (
	maxMembers   = 200_000  // files and directories
	maxDirectory = 32 << 20 // bytes of a zip's directory
	maxName      = 4096     // bytes: PATH_MAX of Linux
	maxContent   = 64 << 30 // bytes of all files, unpacked
	// maxDeflate is the best ratio of deflate: 258 bytes of two bits.
	maxDeflate = 1032
	// All files together may be maxRatio times as large as the wheel. Up to freeContent bytes the
	// ratio is not checked. The package index accepts a ratio of 50.
	maxRatio    = 100
	freeContent = 64 << 20
)

const damagedHint = "rebuild the wheel, or copy it again: the file is damaged or not a wheel"

// errNoMember is a file that a wheel does not have.
var errNoMember = errors.New("not in the wheel")

// Member is one file of a wheel.
type Member struct {
	Name       string // relative, with slashes: no element is empty, "." or ".."
	Size       int64  // bytes, unpacked
	Compressed int64  // bytes in the archive
	Mode       fs.FileMode
	Method     uint16 // of compression: zip.Store or zip.Deflate
}

// Archive is a .whl file opened for reading. It is safe for concurrent use.
type Archive struct {
	path     string
	file     FileName
	distInfo string // name of the one dist-info directory: "deepspeed-0.19.8.dist-info"
	members  []Member
	index    map[string]int // by name, into members
	raw      *io.SectionReader
	open     func(i int) *stream
	closer   io.Closer
}

// Open opens the wheel at path. A file that installers could read in different ways, or not at all,
// is an error with the member, the reason and the exit code fault.Wheel. If the file cannot be
// opened, the error is an *fs.PathError.
func Open(path string) (*Archive, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fileError(path, errors.New("not a file"), damagedHint)
	}
	f, err := OpenFile(path)
	if err != nil {
		return nil, err
	}
	a := &Archive{path: path, closer: f}
	if info, err = f.Stat(); err != nil {
		return a.checked(err)
	}
	a.raw = io.NewSectionReader(f, 0, info.Size())
	return a.checked(a.readFile(f, info.Size()))
}

// checked returns a if it was read without err and its names are valid.
func (a *Archive) checked(err error) (*Archive, error) {
	if err == nil {
		err = a.checkNames()
	}
	if err == nil {
		return a, nil
	}
	_ = a.closer.Close() // nothing was written
	if fault.ExitCode(err) != fault.Wheel {
		err = a.damagedError(err)
	}
	return nil, err
}

// fileError returns the error for an unusable wheel at path.
func fileError(path string, err error, hint string) error {
	if !strings.HasSuffix(path, ".whl") {
		hint = "pass a .whl file: this may be another type of package"
	}
	return fault.New(fault.Wheel, hint, "%s: %w", path, err)
}

// readFile reads the headers of a .whl file of size bytes.
func (a *Archive) readFile(r io.ReaderAt, size int64) error {
	entries, err := readZip(r, size)
	if err != nil {
		return err
	}
	if err := checkSizes(entries, size); err != nil {
		return err
	}
	// Reject duplicate names, and files that are also directories. If "/" is replaced by the lowest
	// byte, which no name contains, the content of a directory sorts directly after it.
	names := make([]string, len(entries))
	for i, m := range entries {
		names[i] = strings.ReplaceAll(m.Name, "/", "\x00")
	}
	slices.Sort(names)
	for i := 1; i < len(names); i++ {
		a, b := names[i-1], names[i]
		switch {
		case a == b:
			return fmt.Errorf("%s: occurs twice", strings.ReplaceAll(a, "\x00", "/"))
		case strings.HasPrefix(b, a+"\x00"):
			return fmt.Errorf("%s: is a file and a directory", strings.ReplaceAll(a, "\x00", "/"))
		}
	}

	if a.file, err = ParseFileName(filepath.Base(a.path)); err != nil {
		return fileError(a.path, err, nameHint)
	}
	entries = slices.DeleteFunc(entries, func(m zipMember) bool { return m.isDir() })
	for _, m := range entries {
		a.members = append(a.members, m.Member)
	}
	var idle sync.Pool // of *inflater
	a.open = func(i int) *stream {
		m := &entries[i]
		raw := io.NewSectionReader(r, m.data, m.Compressed)
		s := &stream{name: m.Name, size: m.Size, left: m.Size, sum: crc32.NewIEEE(), crc: m.crc}
		if m.Method == zip.Deflate {
			s.ReadCloser = &tight{openInflater(&idle, raw), &idle}
		} else {
			s.ReadCloser = io.NopCloser(bufio.NewReaderSize(raw, int(min(m.Compressed, blockSize))))
		}
		return s
	}
	return nil
}

// blockSize is the size of a read from a member, in bytes.
const blockSize = 64 << 10

// inflater reads a deflated stream. Inflaters are reused, because each takes 100 KB and a wheel has
// a thousand streams.
type inflater struct {
	io.ReadCloser               // a flate.Resetter
	raw           *bufio.Reader // from which it reads no more than it needs
}

// openInflater returns an idle inflater, or a new one if none is idle.
func openInflater(idle *sync.Pool, r io.Reader) *inflater {
	in, ok := idle.Get().(*inflater)
	if !ok {
		raw := bufio.NewReaderSize(r, blockSize)
		return &inflater{flate.NewReader(raw), raw}
	}
	in.raw.Reset(r)
	in.ReadCloser.(flate.Resetter).Reset(in.raw, nil) //nolint:errcheck // it never fails
	return in
}

// tight reads a deflated stream that must end exactly at the end of its section of the file.
type tight struct {
	*inflater // nil once it is closed
	idle      *sync.Pool
}

// Close returns the inflater to the pool.
func (t *tight) Close() error {
	if t.inflater != nil {
		t.idle.Put(t.inflater)
		t.inflater = nil
	}
	return nil
}

func (t *tight) Read(p []byte) (int, error) {
	if t.inflater == nil {
		return 0, fs.ErrClosed
	}
	n, err := t.inflater.Read(p)
	if errors.Is(err, io.EOF) {
		if _, more := t.raw.ReadByte(); !errors.Is(more, io.EOF) {
			return n, errors.New("truncated compressed data")
		}
	}
	return n, err
}

// checkSizes rejects zip bombs.
func checkSizes(entries []zipMember, size int64) error {
	total := int64(0)
	for _, m := range entries {
		if total += m.Size; total > maxContent {
			return fmt.Errorf("zip: unpacks to more than %d bytes", int64(maxContent))
		}
	}
	if total > freeContent && total/maxRatio > size {
		return fmt.Errorf("zip: unpacks to %d bytes, more than %d times its own %d", total, maxRatio, size)
	}
	return nil
}

// checkNames fills the index and finds the one dist-info directory, which must belong to the
// distribution in the file's name. Two files must not be installed to the same path: one would
// replace the other, and the installed file would differ from the verified file.
func (a *Archive) checkNames() error {
	a.index = make(map[string]int, len(a.members))
	places := make(map[string]int, len(a.members))
	for i, m := range a.members {
		a.index[m.Name] = i
		p := installPath(m.Name)
		if other, taken := places[p]; taken {
			return fmt.Errorf("installers would write %s and %s to the same path", a.members[other].Name, m.Name)
		}
		places[p] = i
		// Python accepts a dist-info directory in upper and lower case.
		top, _, _ := strings.Cut(p, "/")
		if strings.HasSuffix(strings.ToLower(top), distInfoSuffix) && top != a.distInfo {
			if a.distInfo != "" {
				return fmt.Errorf("two dist-info directories: %s and %s", a.distInfo, top)
			}
			a.distInfo = top
		}
	}
	if a.distInfo == "" {
		return errors.New("no dist-info directory")
	}
	name, version, err := splitDistInfo(a.distInfo)
	if err != nil {
		return err
	}
	for _, m := range a.members {
		top, _, inside := strings.Cut(m.Name, "/")
		base, isData := strings.CutSuffix(top, dataSuffix)
		if n, v := splitBase(base); inside && isData && !(sameName(n, name) && sameVersion(v, version)) {
			return fmt.Errorf("%s: pip uses %s as the data directory, but it is %s-%s%s", m.Name, top, name, version, dataSuffix)
		}
		if scheme, _ := Place(m.Name); scheme != "" && !slices.Contains([]string{"data", "headers", "scripts"}, scheme) {
			return fmt.Errorf("%s: unknown installation directory %s", m.Name, scheme)
		}
	}
	if !sameName(name, a.file.Name) || !sameVersion(version, a.file.Version) && !addsLocal(a.file.Version, version) {
		return fileError(a.path, fmt.Errorf("contains %s, but the file name is of another distribution", a.distInfo), nameHint)
	}
	return nil
}

// Place returns where installers put the file name of a wheel: below site-packages, or in the
// directory of a scheme: "scripts", "headers", "data" (the whole environment).
func Place(name string) (scheme, below string) {
	p := installPath(name)
	if !strings.HasPrefix(p, "/") {
		return "", p
	}
	scheme, below, _ = strings.Cut(p[1:], "/")
	return scheme, below
}

// DistInfo returns the name of the wheel's dist-info directory.
func (a *Archive) DistInfo() string { return a.distInfo }

// installPath returns the path at which installers put the file name of a wheel: relative to
// site-packages, or in the directory of a scheme. Format: the binary distribution format (PyPA),
// "The .data directory".
func installPath(name string) string {
	elements := strings.SplitN(name, "/", 3)
	if len(elements) < 3 || !strings.HasSuffix(elements[0], dataSuffix) {
		return name
	}
	scheme, rest := elements[1], elements[2]
	switch scheme {
	case "purelib", "platlib":
		return rest
	case "data":
		for _, site := range []string{"/site-packages/", "/dist-packages/"} {
			if _, below, ok := strings.Cut(rest, site); ok {
				return below
			}
		}
		if script, ok := strings.CutPrefix(rest, "bin/"); ok {
			scheme, rest = "scripts", script
		}
	}
	return "/" + scheme + "/" + rest // no name in site-packages begins with a slash
}

// badName returns why a name could refer to a path outside the wheel, or to different paths for
// different readers. It returns "" for a safe name.
func badName(name string) string {
	elements := strings.Split(strings.TrimSuffix(name, "/"), "/")
	switch {
	case len(name) > maxName:
		return fmt.Sprintf("has more than %d bytes", maxName)
	case name == "":
		return "is empty"
	case !utf8.ValidString(name):
		return "is not UTF-8"
	case strings.ContainsFunc(name, isControl):
		return "contains a control character"
	case strings.Contains(name, `\`):
		return "contains a backslash"
	case name[0] == '/':
		return "is absolute"
	case len(elements[0]) >= 2 && elements[0][1] == ':':
		return "begins with a drive letter"
	case slices.Contains(elements, ".."):
		return "leaves the wheel"
	case slices.Contains(elements, "") || slices.Contains(elements, "."):
		return "has an empty element"
	}
	return ""
}

// isControl reports whether r is a control character, or ends a line where
// Python splits text into lines.
func isControl(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' }

// hashFile returns the SHA-256 of the opened .whl file in hex, and its size, even if another file
// has its name by now.
func (a *Archive) hashFile(ctx context.Context) (sum string, size int64, err error) {
	h := sha256.New()
	whole := io.NewSectionReader(a.raw, 0, a.raw.Size())
	size, err = io.Copy(h, contextReader{ctx, whole})
	if err != nil && ctx.Err() == nil {
		err = a.damagedError(err)
	}
	return hex.EncodeToString(h.Sum(nil)), size, err
}

// Close releases the file. Streams that are still open can no longer be read.
func (a *Archive) Close() error { return a.closer.Close() }

// Members lists the files, sorted as in the archive.
func (a *Archive) Members() []Member { return slices.Clone(a.members) }

// Open returns the content of the file name as a stream. The stream ends with io.EOF after exactly
// the file's Size bytes if the checksum is right, and otherwise with an error. The caller may trust
// the bytes only after io.EOF.
func (a *Archive) Open(name string) (io.ReadCloser, error) {
	i, ok := a.index[name]
	if !ok {
		return nil, fmt.Errorf("%s: %w", name, errNoMember)
	}
	return a.open(i), nil
}

// ReadFile returns the content of the file name, which may have at most limit
// bytes.
func (a *Archive) ReadFile(name string, limit int64) ([]byte, error) {
	r, err := a.Open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	// The size is not verified yet, so memory grows with the data.
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s: larger than %d bytes", name, limit)
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

// stream reads a member up to its declared size and checks it.
type stream struct {
	io.ReadCloser // the unpacked bytes
	name          string
	size, left    int64
	sum           hash.Hash32
	crc           uint32
	err           error // returned by all further reads
}

func (s *stream) Read(p []byte) (int, error) {
	if s.err != nil || len(p) == 0 {
		return 0, s.err
	}
	if s.left == 0 { // no data may follow, and the checksum must be right
		switch n, err := io.ReadFull(s.ReadCloser, make([]byte, 1)); {
		case n > 0:
			s.err = fmt.Errorf("%s: continues after its %d bytes", s.name, s.size)
		case err != io.EOF:
			s.err = fmt.Errorf("%s: after its %d bytes: %w", s.name, s.size, err)
		case s.sum.Sum32() != s.crc:
			s.err = fmt.Errorf("%s: CRC %08x, but the directory has %08x", s.name, s.sum.Sum32(), s.crc)
		default:
			s.err = io.EOF
		}
		return 0, s.err
	}
	n, err := s.ReadCloser.Read(p[:min(int64(len(p)), s.left)])
	s.left -= int64(n)
	s.sum.Write(p[:n])
	switch {
	case err == nil || err == io.EOF && s.left == 0:
	case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF):
		s.err = fmt.Errorf("%s: ends after %d of %d bytes", s.name, s.size-s.left, s.size)
	default:
		s.err = fmt.Errorf("%s: after %d of %d bytes: %w", s.name, s.size-s.left, s.size, err)
	}
	return n, s.err
}
