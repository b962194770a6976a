package wheel

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"hash/crc32"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
)

// save puts a wheel's bytes where Open finds them.
func save(t testing.TB, file string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), file)
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// everyByte opens the wheel at path, reads all of it and compares it with its
// RECORD.
func everyByte(path string) error {
	a, err := Open(path)
	if err != nil {
		return err
	}
	defer a.Close()
	var errs []error
	for _, m := range a.Members() {
		_, err := a.ReadFile(m.Name, m.Size)
		errs = append(errs, err)
	}
	findings, err := a.VerifyRecord(context.Background())
	errs = append(errs, err)
	for _, f := range findings {
		errs = append(errs, errors.New(f))
	}
	return errors.Join(errs...)
}

var (
	dir    = forged{name: "pkg/", stored: true}
	code   = forged{name: "pkg/code.py", content: "print('hello')\n"}
	stored = forged{name: "pkg/stored", content: "data", stored: true}
)

// with returns m changed by f.
func with(m forged, f func(*forged)) forged {
	f(&m)
	return m
}

// streamed is code as a writer leaves it that cannot go back: what follows
// from the content stands behind it, with or without signature, in fields of
// 32 or 64 bits.
func streamed(t testing.TB, signature bool, bits int) forged {
	var d []byte
	if signature {
		d = append(d, descriptorMagic...)
	}
	d = le.AppendUint32(d, crc32.ChecksumIEEE([]byte(code.content)))
	for _, n := range []int{len(deflated(t, code.content)), len(code.content)} {
		if bits == 64 {
			d = le.AppendUint64(d, uint64(n))
		} else {
			d = le.AppendUint32(d, uint32(n))
		}
	}
	return with(code, func(m *forged) {
		m.descriptor, m.mangleDir = d, patch16(8, flagDescriptor)
		m.mangleLocal = both(patch16(6, flagDescriptor), patch32(14, 0), patch32(18, 0), patch32(22, 0))
	})
}

// wide is stored as a writer leaves it that feared for its size.
func wide() forged {
	return with(stored, func(m *forged) {
		m.localExtra, m.mangleLocal = field(extraZip64, 4, 4), both(patch32(18, math.MaxUint32), patch32(22, math.MaxUint32))
		m.extra, m.mangleDir = field(extraZip64, 4, 4), both(patch32(20, math.MaxUint32), patch32(24, math.MaxUint32))
	})
}

// honestWheels are right, in all the forms that writers of zip files use.
func honestWheels(t testing.TB) map[string][]byte {
	plain := sealed(dir, code, stored)
	unicode := append([]byte{0x75, 0x70, 5 + byte(len(stored.name)), 0, 1, 0, 0, 0, 0}, stored.name...)
	marked := both(patch16(8, flagUTF8), patch32(38, 0))
	return map[string][]byte{
		"plain":                           forge(t, plain, nil),
		"comment":                         forge(t, plain, func(end []byte) []byte { le.PutUint16(end[20:], 2); return append(end, "hi"...) }),
		"descriptor":                      forge(t, sealed(streamed(t, false, 32)), nil),
		"descriptor with signature":       forge(t, sealed(streamed(t, true, 32)), nil),
		"64-bit descriptor":               forge(t, sealed(streamed(t, false, 64)), nil),
		"64-bit descriptor and signature": forge(t, sealed(streamed(t, true, 64)), nil),
		"ZIP64 sizes":                     forge(t, sealed(wide()), nil),
		"ZIP64 end":                       forge(t, plain, zip64End(false, nil)),
		"ZIP64 end without need":          forge(t, plain, zip64End(true, nil)),
		"mode of a directory":             forge(t, sealed(with(dir, func(m *forged) { m.mangleDir = patch32(38, 0o040755<<16|0x10) }), code), nil),
		"executable":                      forge(t, sealed(with(code, func(m *forged) { m.mangleDir = patch32(38, 0o100755<<16) })), nil),
		"extra fields":                    forge(t, sealed(with(stored, func(m *forged) { m.extra, m.localExtra = field(0x5455, 1), unicode })), nil),
		"names equal but for case":        forge(t, sealed(code, with(code, func(m *forged) { m.name = "pkg/CODE.py" })), nil),
		"data directory": forge(t, sealed(code, with(code, func(m *forged) { m.name = "Pkg-1.0.0.data/purelib/pkg/data.py" }),
			with(code, func(m *forged) { m.name = "pkg-1.0.data/data/etc/code.py" }), with(code, func(m *forged) { m.name = "pkg-1.0.data/scripts/code.py" })), nil),
		"names that sort badly": forge(t, sealed(with(code, func(m *forged) { m.name = "pkg" + "!" }), code, with(code, func(m *forged) { m.name = "pkg0" })), nil),
		"UTF-8 and no mode": forge(t, sealed(with(code, func(m *forged) {
			m.name, m.mangleLocal, m.mangleDir = "pkg/ä.py", patch16(6, flagUTF8), marked
		})), nil),
	}
}

func TestHonestWheels(t *testing.T) {
	for what, data := range honestWheels(t) {
		if err := everyByte(save(t, smallName, data)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestMembers(t *testing.T) {
	a, err := Open(save(t, smallName, honestWheels(t)["plain"]))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var names []string
	for _, m := range a.Members() {
		names = append(names, m.Name)
	}
	want := []string{code.name, stored.name, smallInfo + "METADATA", smallInfo + "WHEEL", smallInfo + "RECORD"}
	if !slices.Equal(names, want) || a.distInfo != "pkg-1.0.dist-info" {
		t.Errorf("%s: %q", a.distInfo, names)
	}
	if m := a.Members()[1]; m != (Member{stored.name, 4, 4, 0o644, zip.Store}) {
		t.Errorf("%+v", m)
	}
	if w, err := a.WheelFile(); err != nil || w.Version != "1.0" || !slices.Equal(w.Tags, []string{"py3-none-any"}) {
		t.Errorf("%+v, %v", w, err)
	}
	if _, err := a.Open("pkg/"); !errors.Is(err, errNoMember) {
		t.Error(err)
	}
	if _, err := a.ReadFile(code.name, int64(len(code.content))-1); err == nil || !strings.Contains(err.Error(), "larger than 14 bytes") {
		t.Error(err)
	}
}

// Several streams of one file, read in turns and by several goroutines.
func TestOpenSeveralTimes(t *testing.T) {
	content := strings.Repeat("0123456789", 10_000)
	a, err := Open(save(t, smallName, forge(t, sealed(forged{name: "pkg/big", content: content}), nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			one, err1 := a.Open("pkg/big")
			two, err2 := a.Open("pkg/big")
			if err := errors.Join(err1, err2); err != nil {
				t.Error(err)
				return
			}
			var b1, b2 bytes.Buffer
			for range len(content)/1000 + 1 {
				_, err1 := io.CopyN(&b1, one, 1000)
				_, err2 := io.CopyN(&b2, two, 1000)
				if err := errors.Join(err1, err2); err != nil && !errors.Is(err, io.EOF) {
					t.Error(err)
				}
			}
			if b1.String() != content || b2.String() != content {
				t.Errorf("%d and %d bytes", b1.Len(), b2.Len())
			}
		})
	}
	wg.Wait()
}

// hostile are zip files that are damaged or lie, and what is said of each.
func hostile(t testing.TB) map[string]struct {
	data []byte
	want string
} {
	type c = struct {
		data []byte
		want string
	}
	plain := forge(t, sealed(code, stored), nil)
	n := uint32(len(deflated(t, code.content)))
	named := func(name string) []byte { return forge(t, sealed(with(code, func(m *forged) { m.name = name })), nil) }
	changed := func(m forged, f func(*forged)) []byte { return forge(t, sealed(with(m, f), stored), nil) }
	end := func(f func([]byte)) []byte {
		return forge(t, sealed(code), func(end []byte) []byte { f(end); return end })
	}
	end64 := func(f func(end64, locator []byte)) []byte { return forge(t, sealed(code), zip64End(false, f)) }
	installedOver := func(names ...string) []byte {
		files := []forged{code}
		for _, name := range names {
			files = append(files, forged{name: name, content: "evil"})
		}
		return forge(t, sealed(files...), nil)
	}
	return map[string]c{
		"empty":               {nil, "not a zip file"},
		"no zip":              {[]byte("no zip"), "not a zip file"},
		"cut off":             {plain[:len(plain)-1], "not a zip file"},
		"half":                {plain[:len(plain)/2], "not a zip file"},
		"front cut off":       {plain[10:], "but its end record is at byte"},
		"empty zip":           {forge(t, nil, nil), "no dist-info directory"},
		"data in front":       {append([]byte("#!/bin/sh\n"), plain...), "but its end record is at byte"},
		"data in front, told": {changed(code, func(m *forged) { m.before = "#!/bin/sh\n" }), "pkg/code.py: begins at byte 10; the 10 bytes before it belong to no member"},
		"data behind":         {append(slices.Clip(plain), 0), "has a comment of 0 bytes, 1 bytes follow"},
		"two zips":            {append(slices.Clip(plain), plain...), "but its end record is at byte"},
		"zip in the comment": {
			forge(t, sealed(code), func(end []byte) []byte { le.PutUint16(end[20:], uint16(len(plain))); return append(end, plain...) }),
			"but its end record is at byte",
		},
		"an end record cut in the comment": {
			forge(t, sealed(code), func(end []byte) []byte { le.PutUint16(end[20:], 10); return append(end, "PK\x05\x06abcdef"...) }),
			"a second end record",
		},
		"data between members": {
			forge(t, sealed(code, with(stored, func(m *forged) { m.before = "hidden" })), nil),
			"the 6 bytes before it belong to no member",
		},
		"hidden member":              {forge(t, append(sealed(code), forged{name: "evil", content: "x", noDir: true}), nil), "bytes before the directory belong to no member"},
		"hidden member in between":   {forge(t, sealed(with(code, func(m *forged) { m.noDir = true }), stored), nil), "pkg/stored: begins at byte"},
		"member in the directory":    {forge(t, append(sealed(code), forged{name: "evil", content: "x", noLocal: true}), nil), "evil: has no local header at byte"},
		"directory goes on":          {end(func(e []byte) { patch16(8, 3)(e); patch16(10, 3)(e) }), "zip: the directory continues after its 3 entries"},
		"directory ends early":       {end(func(e []byte) { patch16(8, 5)(e); patch16(10, 5)(e) }), "zip: entry 5 of 5 in the directory is truncated"},
		"entries than cannot be":     {end(func(e []byte) { patch16(8, 9999)(e); patch16(10, 9999)(e) }), "bytes cannot list 9999 members"},
		"directory elsewhere":        {end(patch32(16, 0)), "bytes from byte 0, but its end record is at byte"},
		"several volumes":            {end(patch16(4, 1)), "multi-volume archives are not supported"},
		"ZIP64 several volumes":      {end64(func(e, _ []byte) { patch32(16, 1)(e) }), "multi-volume archives are not supported"},
		"ZIP64 end elsewhere":        {end64(func(_, l []byte) { patch32(8, 0)(l) }), "the ZIP64 end record is said to be at byte 0"},
		"ZIP64 end with extensions":  {end64(func(e, _ []byte) { patch32(4, 99)(e) }), "no ZIP64 end record of 56 bytes"},
		"ZIP64 end that is none":     {end64(func(e, _ []byte) { e[0] = 'X' }), "no ZIP64 end record of 56 bytes"},
		"ZIP64 absurd entries":       {end64(func(e, _ []byte) { patch32(28, 1)(e); patch32(36, 1)(e) }), "members, limit 200000"},
		"ZIP64 absurd directory":     {end64(func(e, _ []byte) { patch32(44, 1)(e) }), "but its end record is at byte"},
		"ZIP64 absurd offset":        {end64(func(e, _ []byte) { patch32(52, math.MaxUint32)(e) }), "but its end record is at byte"},
		"ZIP64 end contradicts":      {forge(t, sealed(code), zip64End(true, func(e, _ []byte) { e[24]--; e[32]-- })), "contradicts the ZIP64 end record"},
		"absolute name":              {named("/etc/passwd"), `"/etc/passwd": name is absolute`},
		"traversal":                  {named("../evil"), `"../evil": name leaves the wheel`},
		"traversal inside":           {named("pkg/../../evil"), "leaves the wheel"},
		"traversal at the end":       {named("pkg/.."), "leaves the wheel"},
		"backslash":                  {named(`pkg\..\evil`), "contains a backslash"},
		"NUL":                        {named("pkg/a.py\x00.txt"), "contains a control character"},
		"line feed":                  {named("pkg/a\nb"), "contains a control character"},
		"line separator":             {named("pkg/a\u2028b"), "contains a control character"},
		"drive letter":               {named("C:/evil"), "begins with a drive letter"},
		"drive letter, relative":     {named("C:evil"), "begins with a drive letter"},
		"empty name":                 {named(""), `"": name is empty`},
		"only a slash":               {named("/"), "is absolute"},
		"empty element":              {named("pkg//a.py"), "has an empty element"},
		"dot":                        {named("./a.py"), "has an empty element"},
		"no UTF-8":                   {named("pkg/\xff"), "is not UTF-8"},
		"not marked as UTF-8":        {named("pkg/ä"), "is neither ASCII nor marked as UTF-8"},
		"long name":                  {named(strings.Repeat("a", maxName+1)), "has more than 4096 bytes"},
		"twice":                      {forge(t, sealed(code, code), nil), "pkg/code.py: occurs twice"},
		"file and directory":         {forge(t, sealed(forged{name: "pkg"}, forged{name: "pkg!"}, code), nil), "pkg: is a file and a directory"},
		"file and empty directory":   {forge(t, sealed(forged{name: "pkg"}, dir), nil), "pkg: is a file and a directory"},
		"link":                       {changed(code, func(m *forged) { m.mangleDir = patch32(38, 0o120777<<16) }), "pkg/code.py: is not a regular file: its mode is 120777"},
		"device":                     {changed(code, func(m *forged) { m.mangleDir = patch32(38, 0o020666<<16) }), "is not a regular file"},
		"file with directory's mode": {changed(code, func(m *forged) { m.mangleDir = patch32(38, 0o040755<<16) }), "is not a regular file"},
		"directory with content":     {changed(dir, func(m *forged) { m.content = "x" }), "pkg/: is a directory with 1 bytes"},
		"encrypted":                  {changed(code, func(m *forged) { m.mangleDir = patch16(8, 1) }), "is encrypted"},
		"strong encryption":          {changed(code, func(m *forged) { m.mangleDir = patch16(8, 1<<6|1) }), "is encrypted"},
		"another volume":             {changed(code, func(m *forged) { m.mangleDir = patch16(34, 1) }), "is in another volume"},
		"bzip2":                      {changed(code, func(m *forged) { m.mangleDir = patch16(10, 12) }), "uses compression method 12"},
		"stored with two sizes":      {changed(stored, func(m *forged) { m.mangleDir = patch32(24, 9999) }), "is stored, but has 9999 bytes instead of 4"},
		"stored with descriptor": {
			changed(stored, func(m *forged) { m.mangleDir, m.mangleLocal = patch16(8, flagDescriptor), patch16(6, flagDescriptor) }),
			"is stored with a data descriptor",
		},
		"more than deflate can": {changed(code, func(m *forged) { m.mangleDir = patch32(24, 1033*n+1032) }), "hold at most 1032 times as many"},
		"another local name":    {changed(code, func(m *forged) { m.localName = "pkg/evil.py" }), `pkg/code.py: is called "pkg/evil.py" in its local header`},
		"another local method":  {changed(code, func(m *forged) { m.mangleLocal = patch16(8, 0) }), "has method 0 and flags 0000 in its local header, 8 and 0000 in the directory"},
		"other local flags":     {changed(code, func(m *forged) { m.mangleLocal = patch16(6, flagUTF8) }), "flags 0800 in its local header"},
		"another local CRC":     {changed(code, func(m *forged) { m.mangleLocal = patch32(14, 7) }), "has CRC 00000007"},
		"another local size":    {changed(code, func(m *forged) { m.mangleLocal = patch32(22, 7) }), "7 bytes, compressed"},
		"another local length":  {changed(code, func(m *forged) { m.mangleLocal = patch32(18, 7) }), "compressed 7 in its local header"},
		"shorter in both": {
			changed(code, func(m *forged) { m.mangleLocal, m.mangleDir = patch32(18, n-1), patch32(20, n-1) }),
			"the 1 bytes before it belong to no member",
		},
		"overlapping": {
			changed(code, func(m *forged) { m.mangleLocal, m.mangleDir = patch32(18, n+1), patch32(20, n+1) }),
			"inside of pkg/code.py",
		},
		"reaches into the directory": {
			changed(code, func(m *forged) { m.mangleLocal, m.mangleDir = patch32(18, 9999), patch32(20, 9999) }),
			"reach into the directory",
		},
		"two names for one place": {
			forge(t, append(sealed(code), forged{name: "evil", content: code.content, noLocal: true, mangleDir: patch32(42, 0)}), nil),
			"begins at byte 0, inside of",
		},
		"quoted headers":            {quoted(t), "inside of"},
		"absurd offset":             {changed(code, func(m *forged) { m.mangleDir, m.extra = patch32(42, math.MaxUint32), field(extraZip64, 1<<63) }), "more than any wheel has"},
		"offset behind the end":     {changed(code, func(m *forged) { m.mangleDir = patch32(42, 1<<30) }), "belong to no member"},
		"absurd size":               {changed(code, func(m *forged) { m.mangleDir, m.extra = patch32(24, math.MaxUint32), field(extraZip64, 1<<62) }), "more than any wheel has"},
		"absurd compressed size":    {changed(code, func(m *forged) { m.mangleDir, m.extra = patch32(20, math.MaxUint32), field(extraZip64, 1<<62) }), "reach into the directory"},
		"no ZIP64 field":            {changed(code, func(m *forged) { m.mangleDir = patch32(24, math.MaxUint32) }), "has a missing or truncated ZIP64 field"},
		"no local ZIP64 field":      {changed(code, func(m *forged) { m.mangleLocal = patch32(22, math.MaxUint32) }), "has a missing or truncated ZIP64 field"},
		"ZIP64 field cut off":       {changed(code, func(m *forged) { m.mangleDir, m.extra = patch32(24, math.MaxUint32), field(extraZip64) }), "missing or truncated"},
		"two ZIP64 fields":          {changed(code, func(m *forged) { m.extra = slices.Concat(field(extraZip64, 1), field(extraZip64, 2)) }), "has two ZIP64 fields"},
		"extra field cut off":       {changed(code, func(m *forged) { m.extra = field(0x5455, 1)[:9] }), "has a truncated extra field"},
		"local ZIP64 field differs": {changed(code, func(m *forged) { m.localExtra = field(extraZip64, 1, 1) }), "has other sizes in the ZIP64 field"},
		"second name":               {changed(code, func(m *forged) { m.extra = field(extraUnicodePath, 0x6c6976650000) }), "has a second name"},
		"second local name":         {changed(code, func(m *forged) { m.localExtra = field(extraUnicodePath, 0) }), "has a second name"},
		"no descriptor":             {changed(streamed(t, true, 32), func(m *forged) { m.descriptor = nil }), "has 0 bytes after its data, which are not a data descriptor"},
		"descriptor cut off":        {changed(streamed(t, true, 32), func(m *forged) { m.descriptor = m.descriptor[1:] }), "has 15 bytes after its data"},
		"descriptor over the next": {
			changed(streamed(t, false, 32), func(m *forged) {
				m.descriptor = nil
				m.mangleLocal, m.mangleDir = both(m.mangleLocal, patch32(18, n+5)), both(m.mangleDir, patch32(20, n+5))
			}),
			"inside of pkg/code.py",
		},
		"extra field over the directory": {changed(code, func(m *forged) { m.mangleLocal = patch16(28, 9999) }), "reach into the directory"},
		"large directory": {
			forge(t, slices.Repeat([]forged{with(stored, func(m *forged) { m.noLocal, m.extra = true, make([]byte, math.MaxUint16) })}, 520), nil),
			"more than 33554432",
		},
		"ZIP64 locator alone":          {append(append([]byte(locator64Magic), make([]byte, locator64Len-4)...), plain[len(plain)-endLen:]...), "the ZIP64 end record is said to be at byte 0"},
		"directory entry cut off":      {changed(code, func(m *forged) { m.mangleDir = patch16(32, math.MaxUint16) }), "in the directory is truncated"},
		"descriptor of another":        {changed(streamed(t, true, 32), func(m *forged) { m.descriptor[4]++ }), "in its data descriptor"},
		"descriptor with other mark":   {changed(streamed(t, true, 64), func(m *forged) { m.descriptor[0]++ }), "are not a data descriptor"},
		"two dist-infos":               {forge(t, sealed(forged{name: "a-1.dist-info/METADATA"}), nil), "two dist-info directories: a-1.dist-info and pkg-1.0.dist-info"},
		"two dist-infos, another case": {forge(t, sealed(forged{name: "a-1.Dist-Info/METADATA"}), nil), "two dist-info directories: a-1.Dist-Info and pkg-1.0.dist-info"},
		"dist-info of another installed beside it": {
			forge(t, sealed(forged{name: "pkg-1.0.data/purelib/a-1.dist-info/METADATA"}), nil),
			"two dist-info directories: a-1.dist-info and pkg-1.0.dist-info",
		},
		"installed over a module":   {installedOver("pkg-1.0.data/platlib/" + code.name), "write pkg/code.py and pkg-1.0.data/platlib/pkg/code.py to the same path"},
		"installed over METADATA":   {installedOver("pkg-1.0.data/purelib/" + smallInfo + "METADATA"), "to the same path"},
		"installed over, by a path": {installedOver("pkg-1.0.data/data/lib/python3.11/site-packages/" + code.name), "to the same path"},
		"installed over each other": {installedOver("pkg-1.0.data/scripts/run", "pkg-1.0.data/data/bin/run"), "to the same path"},
		"data directory of another": {installedOver("evil-1.0.data/purelib/a.py"), "evil-1.0.data/purelib/a.py: pip uses evil-1.0.data as the data directory, but it is pkg-1.0.data"},
		"data directory of no name": {installedOver("pkg.data/purelib/a.py"), "pip uses pkg.data as the data directory"},
		"a scheme of no installer":  {installedOver("pkg-1.0.data/bogus/a.py"), "unknown installation directory bogus"},
		"another distribution":      {forge(t, []forged{{name: "evil-1.0.dist-info/METADATA"}}, nil), "contains evil-1.0.dist-info, but the file name is of another distribution"},
		"another version":           {forge(t, []forged{{name: "pkg-1.1.dist-info/METADATA"}}, nil), "another distribution"},
		"no version":                {forge(t, []forged{{name: "pkg.dist-info/METADATA"}}, nil), "its name is not NAME-VERSION.dist-info"},
		// These are found when the content is read.
		"another CRC":             {changed(code, func(m *forged) { m.mangleLocal, m.mangleDir = patch32(14, 0), patch32(16, 0) }), "the directory has 00000000"},
		"longer than said":        {changed(code, func(m *forged) { m.mangleLocal, m.mangleDir = patch32(22, 14), patch32(24, 14) }), "pkg/code.py: continues after its 14 bytes"},
		"shorter than said":       {changed(code, func(m *forged) { m.mangleLocal, m.mangleDir = patch32(22, 16), patch32(24, 16) }), "pkg/code.py: ends after 15 of 16 bytes"},
		"data behind the data":    {changed(code, func(m *forged) { m.data = append(deflated(t, m.content), 0) }), "truncated compressed data"},
		"compressed data cut off": {changed(code, func(m *forged) { m.data = deflated(t, m.content)[:5] }), "pkg/code.py: ends after"},
		"no deflate":              {changed(code, func(m *forged) { m.data = []byte("\xff\xff\xff") }), "flate: corrupt input"},
		"no compressed data":      {changed(code, func(m *forged) { m.content, m.data = "", []byte{} }), "pkg/code.py: after its 0 bytes: unexpected EOF"},
	}
}

// quoted is a zip bomb as David Fifield made them: the data of each member
// begin with a stored block that holds the local header of the next.
func quoted(t testing.TB) []byte {
	inner := forged{name: "b", content: strings.Repeat("\x00", 1000)}
	var local bytes.Buffer
	writeLocal(t, &local, inner)
	header := local.Bytes()[:localLen+1]
	block := []byte{0, byte(len(header)), 0, ^byte(len(header)), 0xff} // a stored block, not the last
	data := slices.Concat(block, header, deflated(t, inner.content))
	outer := forged{name: "a", content: string(header) + inner.content, data: data}
	at := uint32(localLen + 1 + len(block))
	inner.noLocal, inner.mangleDir = true, patch32(42, at)
	return forge(t, append([]forged{outer}, sealed(inner)...), nil)
}

func TestHostileWheels(t *testing.T) {
	for what, c := range hostile(t) {
		err := everyByte(save(t, smallName, c.data))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}

// A member of more than 4 GiB, and one behind it, in a sparse file.
func TestZip64(t *testing.T) {
	const size = 4<<30 + 1
	big := forged{
		name: "pkg/big", stored: true, localExtra: field(extraZip64, size, size), extra: field(extraZip64, size, size),
		mangleLocal: both(patch32(18, math.MaxUint32), patch32(22, math.MaxUint32)),
		mangleDir:   both(patch32(20, math.MaxUint32), patch32(24, math.MaxUint32)),
	}
	var local bytes.Buffer
	writeLocal(t, &local, big)
	n := int64(local.Len())
	meta := forged{
		name: smallInfo + "METADATA", content: "Name: pkg\nVersion: 1.0\n",
		extra: field(extraZip64, uint64(n+size)), mangleDir: patch32(42, math.MaxUint32),
	}
	file := forge(t, []forged{big, meta}, zip64End(false, func(end, locator []byte) {
		le.PutUint64(end[48:], le.Uint64(end[48:])+size)
		le.PutUint64(locator[8:], le.Uint64(locator[8:])+size)
	}))
	path := filepath.Join(t.TempDir(), smallName)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err1 := f.WriteAt(file[:n], 0)
	_, err2 := f.WriteAt(file[n:], n+size)
	if err := errors.Join(err1, err2, f.Close()); err != nil {
		t.Fatal(err)
	}
	a, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if m, err := a.Metadata(); err != nil || a.Members()[0].Size != size {
		t.Errorf("%+v, %v, %+v", m, err, a.Members())
	}
	in, err := a.Open("pkg/big")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if n, err := io.CopyN(io.Discard, in, 1<<20); err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// What is hashed is what was opened, whatever has the name by now.
func TestHashOfTheOpenFile(t *testing.T) {
	path := save(t, smallName, honestWheels(t)["plain"])
	want, size, err := HashFile(path)
	if err != nil {
		t.Fatal(err)
	}
	a, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := os.Rename(save(t, "other", []byte("another file")), path); err != nil {
		t.Fatal(err)
	}
	if got, n, err := a.hashFile(t.Context()); got != want || n != size || err != nil {
		t.Errorf("%s, %d bytes, %v, want %s, %d", got, n, err, want, size)
	}
}

// An error stays, whoever asks again.
func TestDamagedStreamStaysDamaged(t *testing.T) {
	wrong := with(code, func(m *forged) { m.mangleLocal, m.mangleDir = patch32(14, 0), patch32(16, 0) })
	a, err := Open(save(t, smallName, forge(t, sealed(wrong), nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	in, err := a.Open(code.name)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	_, first := io.Copy(io.Discard, in)
	if n, again := in.Read(make([]byte, 9)); first == nil || n != 0 || !errors.Is(again, first) {
		t.Errorf("%v, then %d bytes and %v", first, n, again)
	}
}

func TestBomb(t *testing.T) {
	needs.Time(t)
	err := everyByte(save(t, smallName, forge(t, sealed(forged{name: "pkg/bomb", content: strings.Repeat("\x00", freeContent)}), nil)))
	if err == nil || !strings.Contains(err.Error(), "more than 100 times its own") {
		t.Error(err)
	}
}

// Files of 64 GiB cannot lie in a test, but be claimed.
func TestContentIsBounded(t *testing.T) {
	half := zipMember{Member: Member{Size: maxContent/2 + 1}}
	if err := checkSizes([]zipMember{half}, maxContent); err != nil {
		t.Error(err)
	}
	if err := checkSizes([]zipMember{half, half}, maxContent); err == nil {
		t.Error("more than 64 GiB pass")
	}
}

// What one file says must not cost more memory than reading all its headers:
// 200,000 members are listed, and no more.
func TestMembersAreBounded(t *testing.T) {
	for n, want := range map[int]string{maxMembers: "no dist-info", maxMembers + 1: "zip: 200001 members, limit 200000"} {
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		for i := range n {
			if _, err := z.CreateRaw(&zip.FileHeader{Name: strconv.Itoa(i)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(save(t, smallName, b.Bytes())); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d members: %v, want %q", n, err, want)
		}
	}
}

func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), smallName)
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(pipe)
	if fault.ExitCode(err) != fault.Wheel || err.Error() != pipe+": not a file" {
		t.Error(err)
	}
	// What cannot be opened says nothing of a wheel.
	for path, want := range map[string]string{pipe + "/x": "not a directory", pipe + "x": "no such file"} {
		_, err := Open(path)
		if fault.ExitCode(err) == fault.Wheel || err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), path) != 1 {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// tool returns the path of a program that this test compares with.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return path
}

// unzip and Python find nothing wrong in the wheels called honest, so the
// helper that makes them and the hostile ones makes zip files.
func TestOthersReadHonestWheels(t *testing.T) {
	unzip, python := tool(t, "unzip"), tool(t, "python3")
	const script = `
import sys, zipfile
for path in sys.argv[1:]:
    if bad := zipfile.ZipFile(path).testzip(): sys.exit(path + ": " + bad)
`
	check := []string{"-c", script}
	for what, data := range honestWheels(t) {
		path := save(t, smallName, data)
		check = append(check, path)
		if out, err := exec.Command(unzip, "-tqq", path).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", what, err, out)
		}
	}
	if out, err := exec.Command(python, check...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Zip files as Python writes them, to files and to pipes.
func TestPythonsWheels(t *testing.T) {
	python := tool(t, "python3")
	const script = `
import io, sys, zipfile
class Pipe(io.RawIOBase):
    def __init__(self, f): self.f = f
    def writable(self): return True
    def write(self, b): return self.f.write(b)
info = "pkg-1.0.dist-info/"
for kind in "file", "pipe", "wide", "stored":
    out = open(sys.argv[1] + "/pkg-1.0-1" + kind + "-py3-none-any.whl", "wb")
    method = zipfile.ZIP_STORED if kind == "stored" else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(Pipe(out) if kind == "pipe" else out, "w", method) as z:
        z.mkdir("pkg") if hasattr(z, "mkdir") else None
        with z.open("pkg/\xe4.py", "w", force_zip64=kind == "wide") as f: f.write(b"x" * 5000)
        z.writestr(info + "METADATA", "Name: pkg\nVersion: 1.0\n")
        z.writestr(info + "RECORD", "pkg/\xe4.py,sha256=%s,5000\n%sMETADATA,sha256=%s,23\n%sRECORD,,\n" % (sys.argv[2], info, sys.argv[3], info))
    out.close()
`
	tmp := t.TempDir()
	x, meta := recorded("", strings.Repeat("x", 5000)), recorded("", "Name: pkg\nVersion: 1.0\n")
	if out, err := exec.Command(python, "-c", script, tmp, x.Digest, meta.Digest).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	wheels, err := filepath.Glob(filepath.Join(tmp, "*.whl"))
	if err != nil || len(wheels) != 4 {
		t.Fatalf("%q, %v", wheels, err)
	}
	for _, w := range wheels {
		if err := everyByte(w); err != nil {
			t.Error(err)
		}
	}
}

// The wheels that come with Python are real ones.
func TestRealWheels(t *testing.T) {
	out, err := exec.Command(tool(t, "python3"), "-c", "import ensurepip; print(ensurepip.__path__[0])").Output()
	if err != nil {
		t.Skip("this Python has no ensurepip") // Debian cuts it out
	}
	wheels, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "_bundled", "*.whl"))
	if err != nil || len(wheels) == 0 {
		t.Skip("this Python brings no wheels")
	}
	for _, w := range wheels {
		if err := everyByte(w); err != nil {
			t.Error(err)
		}
		a, err := Open(w)
		if err != nil {
			continue
		}
		defer a.Close()
		n := a.file
		m, err1 := a.Metadata()
		f, err2 := a.WheelFile()
		if err := errors.Join(err1, err2); err != nil || len(compareTags(n, f)) > 0 || m.RequiresPython == "" {
			t.Errorf("%+v, %+v, %+v, %v", n, m, f, err)
		}
	}
}

// Whatever the bytes: no panic, and what opens is what archive/zip reads too.
func FuzzArchive(f *testing.F) {
	for _, data := range honestWheels(f) {
		f.Add(data)
	}
	for _, c := range hostile(f) {
		if len(c.data) < 1<<20 { // the fuzzer takes no large ones
			f.Add(c.data)
		}
	}
	f.Fuzz(readAlike)
}

// The same for a wheel that is right but for one member, whose headers are
// those of code with some bits changed.
func FuzzHeaders(f *testing.F) {
	f.Add(code.name, "", true, []byte{}, []byte{}, []byte{}, []byte{}, []byte{}, []byte{}, []byte{})
	f.Add("pkg/a", "pkg/b", false, []byte("x"), deflated(f, "x"), field(extraZip64, 1, 2, 3), field(extraZip64, 1, 2), make([]byte, centralLen), make([]byte, localLen), make([]byte, endLen))
	s := streamed(f, true, 32)
	f.Add(s.name, "", false, []byte(s.content), deflated(f, s.content), s.descriptor, []byte{}, append(make([]byte, 8), flagDescriptor), append(make([]byte, 6), flagDescriptor), []byte{})
	f.Fuzz(func(t *testing.T, name, local string, stored bool, content, data, extra, localExtra, dirBits, localBits, endBits []byte) {
		if len(name)+len(local) > math.MaxUint16 || len(extra) > math.MaxUint16 || len(localExtra) > math.MaxUint16 {
			return
		}
		flip := func(bits []byte) func([]byte) {
			return func(h []byte) {
				for i := range min(len(h), len(bits)) {
					h[i] ^= bits[i]
				}
			}
		}
		m := forged{
			name: name, localName: local, stored: stored, content: string(content), data: append([]byte{}, data...),
			extra: extra, localExtra: localExtra, mangleDir: flip(dirBits), mangleLocal: flip(localBits),
		}
		if stored {
			m.data = nil
		}
		if len(localBits) > 6 && localBits[6]&flagDescriptor != 0 {
			m.descriptor, m.extra = extra, nil
		}
		wheel := sealed(m)
		for i := range wheel[1:] {
			wheel[1+i].stored = true // making a compressor takes longer than all the rest
		}
		readAlike(t, forge(t, wheel, ended(flip(endBits))))
	})
}

// readAlike opens the bytes of a wheel, and if that works compares all that is
// inside with what archive/zip reads.
func readAlike(t *testing.T, data []byte) {
	a := &Archive{path: smallName, closer: io.NopCloser(nil)}
	a, err := a.checked(a.readFile(bytes.NewReader(data), int64(len(data))))
	if err != nil {
		if fault.ExitCode(err) != fault.Wheel {
			t.Errorf("%T: %v", err, err)
		}
		return
	}
	if _, err := a.VerifyRecord(t.Context()); err != nil {
		t.Error(err)
	}
	other, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatalf("archive/zip does not open it: %v", err)
	}
	files := slices.DeleteFunc(other.File, func(f *zip.File) bool { return strings.HasSuffix(f.Name, "/") })
	if len(files) != len(a.Members()) {
		t.Fatalf("%d members, archive/zip sees %d", len(a.Members()), len(files))
	}
	for i, m := range a.Members() {
		content, err := a.ReadFile(m.Name, 1<<20)
		if err == nil {
			compareWithZip(t, files[i], m, content)
		}
	}
}

// compareWithZip compares a member with what archive/zip says of it.
func compareWithZip(t *testing.T, f *zip.File, m Member, content []byte) {
	t.Helper()
	r, err := f.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	theirs, err := io.ReadAll(r)
	if err != nil || f.Name != m.Name || !bytes.Equal(theirs, content) || int64(len(content)) != m.Size {
		t.Errorf("%+v, %d bytes; archive/zip: %s, %d bytes, %v", m, len(content), f.Name, len(theirs), err)
	}
}
