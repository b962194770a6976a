package wheel

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// parts writes a file and splits it, and sees that the parts are the file.
func parts(t *testing.T, name string, data []byte) []Part {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Parts(path)
	if err != nil {
		t.Errorf("%v", err)
	}
	at := int64(0)
	for _, p := range got {
		if p.Offset != at || p.Size <= 0 || p.Size > int64(len(data))-at {
			t.Fatalf("a part of %d bytes at %d, after %d of %d", p.Size, p.Offset, at, len(data))
		}
		at += p.Size
		if tag := fmt.Sprintf("%08x%08x", p.Size, crc32.ChecksumIEEE(data[p.Offset:at])); tag != hex.EncodeToString(p.Tag[:]) {
			t.Errorf("the tag of the part at %d is %x, not %s", p.Offset, p.Tag, tag)
		}
	}
	if at != int64(len(data)) {
		t.Errorf("%d of %d bytes are in parts", at, len(data))
	}
	return got
}

// shared is how many parts of b are in a too.
func shared(a, b []Part) int {
	n := 0
	for _, p := range b {
		if slices.ContainsFunc(a, func(o Part) bool { return o.Tag == p.Tag }) {
			n++
		}
	}
	return n
}

// Every form of a wheel has a part for each member, and one for the directory.
func TestPartsOfAWheel(t *testing.T) {
	for name, data := range honestWheels(t) {
		t.Run(name, func(t *testing.T) {
			members, err := readZip(bytes.NewReader(data), int64(len(data)))
			if err != nil {
				t.Fatal(err)
			}
			if got := parts(t, smallName, data); len(got) != len(members)+1 {
				t.Errorf("%d parts of %d members", len(got), len(members))
			}
		})
	}
}

// A member that is longer moves those behind it, which are the same parts all the same.
func TestAChangedMemberIsAChangedPart(t *testing.T) {
	longer := with(code, func(m *forged) { m.content += strings.Repeat("# more", 50) })
	for name, members := range map[string][2][]forged{
		"plain":      {{code, stored}, {longer, stored}},
		"descriptor": {{code, streamed(t, true, 64)}, {longer, streamed(t, true, 64)}},
		"ZIP64":      {{code, wide()}, {longer, wide()}},
	} {
		a, b := parts(t, smallName, forge(t, members[0], nil)), parts(t, smallName, forge(t, members[1], nil))
		if n := shared(a, b); len(a) != 3 || len(b) != 3 || n != 1 {
			t.Errorf("%s: %d of %d parts are in one of %d", name, n, len(b), len(a))
		}
	}
}

func TestPartsOfByteCode(t *testing.T) {
	stream := func(text string) string { return xzMagic + text }
	a := parts(t, "a.whl"+ByteCodeSuffix, []byte(stream("list")+stream("runtime")+stream("ops")))
	b := parts(t, "b.whl"+ByteCodeSuffix, []byte(stream("another list")+stream("runtime")+stream("ops")))
	if len(a) != 3 || len(b) != 3 || shared(a, b) != 2 {
		t.Errorf("%d of %d parts are in one of %d", shared(a, b), len(b), len(a))
	}
	if one := parts(t, "c.whl"+ByteCodeSuffix, []byte("not xz")); len(one) != 1 {
		t.Errorf("%d parts", len(one))
	}
	if none := parts(t, "d.whl"+ByteCodeSuffix, nil); len(none) != 0 {
		t.Errorf("%d parts of nothing", len(none))
	}
}

func TestWhatHasNoParts(t *testing.T) {
	whole := forge(t, sealed(code), nil)
	outside := slices.Clone(whole)
	at := bytes.Index(outside, []byte(centralMagic))
	binary.LittleEndian.PutUint32(outside[at+42:], uint32(len(outside))+1)
	for name, data := range map[string][]byte{
		"empty": {}, "no zip": []byte("wheel"), "cut off": whole[:len(whole)-3], "a member outside": outside,
	} {
		path := filepath.Join(t.TempDir(), smallName)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := Parts(path); err == nil {
			t.Errorf("%s: %d parts", name, len(got))
		}
	}
	if got, err := Parts(filepath.Join(t.TempDir(), smallName)); err == nil {
		t.Errorf("no file: %d parts", len(got))
	}
}

// Where a stream begins is found at every place of a block, the seams between them too.
func TestPartsOfStreamsAcrossBlocks(t *testing.T) {
	for at := 64<<10 - 2*len(xzMagic); at <= 64<<10+2*len(xzMagic); at++ {
		data := slices.Concat([]byte(xzMagic), make([]byte, at-len(xzMagic)), []byte(xzMagic), make([]byte, 100<<10))
		got := parts(t, smallName+ByteCodeSuffix, data)
		if len(got) != 2 || got[1].Offset != int64(at) {
			t.Errorf("a stream at byte %d: %v", at, got)
		}
	}
}
