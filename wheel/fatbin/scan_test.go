package fatbin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// scan collects what a section holds.
func scan(section []byte) ([]Entry, error) {
	var found []Entry
	err := Scan(bytes.NewReader(section), int64(len(section)), func(e Entry) error {
		found = append(found, e)
		return nil
	})
	return found, err
}

// cuobjdumpName is what cuobjdump calls an entry: "elf sm_90a".
func cuobjdumpName(e Entry) string {
	kind := map[Payload]string{
		SASS: "elf", PTX: "ptx", LTOIR: "nvvm", TileIR: "tile ir", OldCubin: "cubin",
		Index: "index", Concatenated: "concatenated entry", Unknown: "<unknown kind>",
	}[e.Kind]
	if e.Arch == "" {
		return kind
	}
	return kind + " sm_" + strings.ReplaceAll(e.Arch, ".", "")
}

// cubinName takes the family off the name of machine code: the header of its
// entry has one, the cubin has none.
func cubinName(name string) string {
	if strings.HasPrefix(name, "elf ") {
		return strings.TrimSuffix(name, "f")
	}
	return name
}

// NCCL 2.32.3 and cupy 14.2.0 have cubins whose entries are flagged as for a
// family; cuobjdump --list-elf of CUDA 13.2 and 13.5 says sm_100 and sm_120.
func TestFamily(t *testing.T) {
	for _, c := range []struct {
		entry raw
		want  string
	}{
		{raw{kind: 2, arch: 100, flags: 0x1202011}, "10.0"},
		{raw{kind: 2, arch: 120, flags: 0x1202011}, "12.0"},
		{raw{kind: 2, arch: 100, flags: 0x1002011}, "10.0"},
		{raw{kind: 2, arch: 90, flags: 0x102011}, "9.0a"},
		{raw{kind: 2, arch: 103, flags: 0x1302011}, "10.3a"},
		{raw{kind: 1, arch: 100, flags: 0x202011}, "10.0f"},
		{raw{kind: 1, arch: 120, flags: 0x2011}, "12.0"},
	} {
		entries, err := scan(container(c.entry))
		if err != nil || len(entries) != 1 || entries[0].Arch != c.want {
			t.Errorf("%+v: %v, %v; want %s", c.entry, entries, err, c.want)
		}
	}
}

// Each section in testdata has beside it what cuobjdump says about it.
func TestScan(t *testing.T) {
	sections, err := filepath.Glob("testdata/*.fatbin")
	if err != nil || len(sections) < 10 {
		t.Fatalf("%d sections in testdata, %v", len(sections), err)
	}
	for _, file := range sections {
		section := readFile(t, file)
		want := strings.Split(strings.TrimSpace(string(readFile(t, strings.TrimSuffix(file, ".fatbin")+".txt"))), "\n")
		entries, err := scan(section)
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		var got []string
		for _, e := range entries {
			got = append(got, cuobjdumpName(e))
		}
		for i := range want { // --list-ptx lists these among the others
			want[i] = cubinName(strings.TrimPrefix(want[i], "relocatable "))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s holds\n%q, cuobjdump says\n%q", file, got, want)
		}
	}
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// raw is an entry as it is written, or a member of a list where size is the
// offset of its payload.
type raw struct {
	kind    uint16
	size    uint32 // of the header; 0 for what it has
	payload uint64
	options uint32
	arch    uint32
	name    [2]uint32
	flags   uint64
	rest    string // of the header
}

func (r raw) bytes() []byte {
	b := make([]byte, headerSize, headerSize+len(r.rest))
	le := binary.LittleEndian
	le.PutUint16(b, r.kind)
	le.PutUint32(b[4:], r.size)
	if r.size == 0 {
		le.PutUint32(b[4:], uint32(headerSize+len(r.rest)))
	}
	le.PutUint64(b[8:], r.payload)
	le.PutUint32(b[20:], r.options)
	le.PutUint32(b[28:], r.arch)
	le.PutUint32(b[32:], r.name[0])
	le.PutUint32(b[36:], r.name[1])
	le.PutUint64(b[40:], r.flags)
	return append(b, r.rest...)
}

// container writes one around entries; each payload is that many of "x".
func container(entries ...raw) []byte {
	var body []byte
	for _, e := range entries {
		body = append(body, e.bytes()...)
		body = append(body, strings.Repeat("x", int(min(e.payload, 1000)))...)
	}
	return append(containerHeader(containerSize, uint64(len(body))), body...)
}

func containerHeader(header uint16, body uint64) []byte {
	b := binary.LittleEndian.AppendUint32(nil, magic)
	b = binary.LittleEndian.AppendUint16(b, 1)
	b = binary.LittleEndian.AppendUint16(b, header)
	return binary.LittleEndian.AppendUint64(b, body)
}

// list writes a concatenated entry's list of members.
func list(n uint32, members ...raw) string {
	var b []byte
	for _, m := range members {
		b = append(b, m.bytes()...)
	}
	head := binary.LittleEndian.AppendUint32(nil, n)
	return string(append(binary.LittleEndian.AppendUint32(head, uint32(8+len(b))), b...))
}

func u32s(values ...uint32) string {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return string(b)
}

const zeros = "\x00\x00\x00\x00\x00\x00\x00\x00"

func TestScanReads(t *testing.T) {
	sass := raw{kind: 2, arch: 80, payload: 8}
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for name, c := range map[string]struct {
		section []byte
		want    string
	}{
		"nothing":           {nil, ""},
		"padding alone":     {[]byte(zeros + "\x00\x00\x00"), ""},
		"empty container":   {container(), ""},
		"padding":           {join([]byte(zeros), container(sass), []byte(zeros+zeros), container(sass), []byte{0}), "elf sm_80, elf sm_80"},
		"longer header":     {join(containerHeader(24, 72), []byte(zeros), container(sass)[16:]), "elf sm_80"},
		"odd size":          {join(container(raw{kind: 1, arch: 75, payload: 5}), []byte(zeros)[:3], container(sass)), "ptx sm_75, elf sm_80"},
		"empty payload":     {container(raw{kind: 2, arch: 80}, sass), "elf sm_80, elf sm_80"},
		"suffixes":          {container(raw{kind: 2, arch: 90, flags: flagArch}, raw{kind: 1, arch: 120, flags: flagFamily}, raw{kind: 2, arch: 103, flags: flagArch | flagFamily}), "elf sm_90a, ptx sm_120f, elf sm_103a"},
		"kinds":             {container(raw{kind: 4, arch: 10}, raw{kind: 8, arch: 80}, raw{kind: 0x10, arch: 100}, raw{kind: 0x20}, raw{kind: 0x40, arch: 80}, raw{kind: 0x80}, raw{kind: 0x200, arch: 1 << 31}), "cubin sm_10, nvvm sm_80, elf sm_100, index, ptx sm_80, tile ir, <unknown kind>"},
		"name, options":     {container(raw{kind: 2, arch: 80, name: [2]uint32{64, 3}, options: 72, rest: "abc" + zeros[:5] + u32s(80, 0) + zeros}, sass), "elf sm_80, elf sm_80"},
		"no members":        {container(raw{kind: 0x100, options: 64, rest: list(0)}, sass), "concatenated entry, elf sm_80"},
		"members":           {container(raw{kind: 0x100, options: 64, rest: list(2, raw{kind: 2, arch: 80}, raw{kind: 1, arch: 90, flags: flagArch})}, sass), "concatenated entry, elf sm_80, ptx sm_90a, elf sm_80"},
		"members' names":    {container(raw{kind: 0x100, options: 64, rest: list(2, raw{kind: 2, arch: 80, name: [2]uint32{64, 8}, rest: "12345678" + zeros}, raw{kind: 2, arch: 86})}), "concatenated entry, elf sm_80, elf sm_86"},
		"members' options":  {container(raw{kind: 0x100, options: 64, rest: list(2, raw{kind: 2, arch: 80, options: 64, rest: u32s(72, 7) + "1234567\x00"}, raw{kind: 2, arch: 86})}), "concatenated entry, elf sm_80, elf sm_86"},
		"list behind names": {container(raw{kind: 0x100, options: 72, rest: zeros + list(1, raw{kind: 2, arch: 80})}), "concatenated entry, elf sm_80"},
	} {
		entries, err := scan(c.section)
		var got []string
		for _, e := range entries {
			got = append(got, cuobjdumpName(e))
		}
		if err != nil || strings.Join(got, ", ") != c.want {
			t.Errorf("%s: %q, %v; want %q", name, strings.Join(got, ", "), err, c.want)
		}
	}
}

func TestScanRefuses(t *testing.T) {
	const huge = 1 << 63
	sass := raw{kind: 2, arch: 80, payload: 8}
	concat := func(rest string) []byte { return container(raw{kind: 0x100, options: 64, rest: rest}) }
	tiny := slices.Repeat([]raw{{kind: 2, arch: 80}}, maxEntries)
	for name, c := range map[string]struct {
		section []byte
		offset  int64
		why     string
	}{
		"other magic":            {append(container(sass), "GARBAGE!GARBAGE!"...), 88, "neither padding nor a fat binary"},
		"old magic":              {[]byte(u32s(0x1EE55A01, 0, 0, 0)), 0, "0x1ee55a01"},
		"misaligned":             {append([]byte{0, 0, 0, 0}, container(sass)...), 4, "multiple of 8"},
		"half a header":          {container(sass)[:12], 0, "has 16 bytes, and there are 12"},
		"header size 0":          {containerHeader(0, 0), 0, "fewer than 16"},
		"header too large":       {containerHeader(17, 0), 0, "and the section ends in 16"},
		"container too large":    {append(containerHeader(16, 73), container(sass)[16:]...), 0, "and the section ends in 88"},
		"container of 2^63":      {append(containerHeader(16, huge), container(sass)[16:]...), 0, "a fat binary of 16 and 9223372036854775808 bytes"},
		"container of 2^64-1":    {append(containerHeader(16, 1<<64-1), container(sass)[16:]...), 0, "and the section ends in"},
		"entry cut off":          {containerHeader16(container(sass)[16:70]), 16, "the header of an entry has 64 bytes, and there are 54"},
		"entry of size 0":        {container(sass, raw{kind: 2, arch: 80, size: 63}), 88, "it has 63 bytes, fewer than 64"},
		"entry header too large": {container(raw{kind: 2, arch: 80, size: 1<<32 - 1}), 16, "an entry of 4294967295 and 0 bytes"},
		"payload too large":      {container(raw{kind: 2, arch: 80, payload: 1001}), 16, "an entry of 64 and 1001 bytes, and the fat binary ends in 1064"},
		"payload of 2^63":        {container(raw{kind: 2, arch: 80, payload: huge}), 16, "ends in"},
		"payload of 2^64-1":      {container(raw{kind: 2, arch: 80, payload: 1<<64 - 1}), 16, "ends in"},
		"no GPU":                 {container(raw{kind: 2}), 16, "code for sm_0, which is not a GPU"},
		"GPU of 4 digits":        {container(sass, raw{kind: 1, arch: 1000}), 88, "code for sm_1000"},
		"list outside":           {container(raw{kind: 0x100, options: 64}), 16, "its list at 64, and its header has 64 bytes"},
		"list within the header": {container(raw{kind: 0x100, options: 56, rest: zeros}), 16, "its list at 56"},
		"list of 7 bytes":        {concat(u32s(0, 7)), 80, "a list of entries of 7 bytes"},
		"list too long":          {concat(u32s(0, 9)), 80, "a list of entries of 9 bytes, and the header it is in ends in 8"},
		"2^32-1 members":         {concat(list(1<<32-1, sass)), 152, "has 64 bytes, and there are 0"},
		"bytes behind members":   {concat(list(1, raw{kind: 2, arch: 80, rest: zeros})), 152, "8 bytes behind the last of 1"},
		"concatenated twice":     {concat(list(1, raw{kind: 0x100})), 88, "within another"},
		"member for no GPU":      {concat(list(1, raw{kind: 2})), 88, "which is not a GPU"},
		"options in the header":  {concat(list(1, raw{kind: 2, arch: 80, options: 8})), 88, "options at 8"},
		"options outside":        {concat(list(1, raw{kind: 2, arch: 80, options: 64})), 88, "options at 64"},
		"options too long":       {concat(list(1, raw{kind: 2, arch: 80, options: 64, rest: u32s(1<<32-1, 1<<32-1)})), 88, "an entry of 8589934592 bytes"},
		"name too long":          {concat(list(1, raw{kind: 2, arch: 80, name: [2]uint32{64, 1 << 31}})), 88, "an entry of"},
		"too many entries":       {container(tiny...), 16 + 64*(maxEntries-1), "more than 1048576 entries"},
		"too many containers":    {bytes.Repeat(container(), maxEntries+1), 16 * maxEntries, "more than 1048576 entries"},
	} {
		_, err := scan(c.section)
		var e *Error
		if !errors.As(err, &e) || e.Offset != c.offset || !strings.Contains(e.Why, c.why) {
			t.Errorf("%s: %v; want offset %#x: … %s …", name, err, c.offset, c.why)
		}
	}
}

// containerHeader16 puts a container's header before body.
func containerHeader16(body []byte) []byte {
	return append(containerHeader(containerSize, uint64(len(body))), body...)
}

// A section that is cut off anywhere is refused or shorter, never misread.
func TestScanCutOff(t *testing.T) {
	section := readFile(t, "testdata/cuda-13.5-concat.fatbin")
	whole, err := scan(section)
	if err != nil {
		t.Fatal(err)
	}
	for n := range section {
		var e *Error
		if _, err := scan(section[:n]); n > 0 && !errors.As(err, &e) {
			t.Fatalf("a section of %d bytes: %v", n, err)
		}
		var got []Entry // the stream ends before the section should
		err := Scan(bytes.NewReader(section[:n]), int64(len(section)), func(e Entry) error {
			got = append(got, e)
			return nil
		})
		if !errors.As(err, &e) || e.Offset != int64(n) || !strings.Contains(e.Why, "cut off") {
			t.Fatalf("%d bytes of the section: %v", n, err)
		}
		if !slices.Equal(got, whole[:len(got)]) {
			t.Fatalf("%d bytes of the section hold %v", n, got)
		}
	}
}

func TestScanErrors(t *testing.T) {
	section := readFile(t, "testdata/cuda-13.2-zstd.fatbin")
	size := int64(len(section))
	stop := errors.New("stop")
	if err := Scan(bytes.NewReader(section), size, func(Entry) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("the visitor's error came back as %v", err)
	}
	broken := io.MultiReader(bytes.NewReader(section[:1000]), iotest.ErrReader(stop))
	err := Scan(broken, size, func(Entry) error { return nil })
	if !errors.Is(err, stop) || !strings.HasPrefix(err.Error(), "offset 0x") {
		t.Errorf("the reader's error came back as %v", err)
	}
	if err := Scan(bytes.NewReader(nil), -1, nil); err == nil {
		t.Error("a section of -1 bytes was read")
	}
	r := bytes.NewReader(append(section, "the next section"...))
	if err := Scan(iotest.OneByteReader(r), size, func(Entry) error { return nil }); err != nil || r.Len() != 16 {
		t.Errorf("%d bytes behind the section are left, %v", r.Len(), err)
	}
}

// endless is the stream of a large payload.
type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// A section of libtorch_cuda.so is larger than 500 MB.
func TestScanStreams(t *testing.T) {
	const payload = 1 << 29
	head := append(containerHeader(containerSize, headerSize+payload), raw{kind: 2, arch: 80, payload: payload}.bytes()...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var found []Entry
	err := Scan(io.MultiReader(bytes.NewReader(head), endless{}), int64(len(head))+payload, func(e Entry) error {
		found = append(found, e)
		return nil
	})
	runtime.ReadMemStats(&after)
	if err != nil || len(found) != 1 {
		t.Errorf("%v, %v", found, err)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 256<<10 {
		t.Errorf("%d bytes allocated for a section of %d", got, payload)
	}
}

var archForm = regexp.MustCompile(`^[0-9]{1,2}\.[0-9][af]?$`)

// Whatever the bytes: an error that says where, or entries that fit into them.
func FuzzScan(f *testing.F) {
	sections, err := filepath.Glob("testdata/*.fatbin")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range sections {
		f.Add(readFile(f, file))
	}
	f.Fuzz(func(t *testing.T, section []byte) {
		entries, err := scan(section)
		var bad *Error
		if err != nil && (!errors.As(err, &bad) || bad.Offset < 0 || bad.Offset > int64(len(section))) {
			t.Fatalf("%v", err)
		}
		for _, e := range entries {
			if !archForm.MatchString(e.Arch) && (e.Arch != "" || e.Kind == SASS || e.Kind == PTX) {
				t.Fatalf("%+v", e)
			}
		}
		if len(entries)*headerSize > len(section) {
			t.Fatalf("%d entries in a section of %d bytes", len(entries), len(section))
		}
	})
}
