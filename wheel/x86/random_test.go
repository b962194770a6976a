package x86

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// randomCode returns code with prefixes and escapes more often than chance has
// them.
func randomCode(r *rand.Rand) []byte {
	var code []byte
	for r.IntN(10) < 3 {
		code = append(code, []byte{0x66, 0xf2, 0xf3, 0x67, 0x2e, 0x64, 0xf0}[r.IntN(7)])
	}
	if r.IntN(10) < 3 {
		code = append(code, byte(0x40+r.IntN(16)))
	}
	any := func() byte { return byte(r.Uint32()) }
	switch r.IntN(10) {
	case 0, 1:
		code = append(code, 0x0f)
	case 2:
		code = append(code, 0x0f, 0x38)
	case 3:
		code = append(code, 0x0f, 0x3a)
	case 4:
		code = append(code, 0xc5, any()|0x78)
	case 5:
		code = append(code, 0xc4, any()&0xe0|byte(1+r.IntN(3)), any()|0x78)
	case 6, 7:
		code = append(code, 0x62, any()&0xf0|byte(1+r.IntN(6)), any()|0x7c, any()&0x6f|8)
	case 8:
		code = append(code, 0x8f, any()&0xe0|byte(8+r.IntN(3)), any()|0x78)
	}
	for len(code) < 24 {
		code = append(code, any())
	}
	return code
}

// TestRandom compares random code with objdump. Left out is what objdump calls
// bad, what it reads although a prefix makes it none (see objdumpAlone) or though
// it is too long, and code with a REX that another prefix follows: objdump prints
// that REX by itself and then forgets a 66 or 67 before it.
func TestRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 2026))
	var code []byte
	for range 10000 {
		code = append(code, encoding{code: randomCode(r)}.padded()...)
	}
	file := filepath.Join(t.TempDir(), "code")
	if err := os.WriteFile(file, code, 0o600); err != nil {
		t.Fatal(err)
	}
	o := oracle{}
	same, refused := 0, 0
	objdump(t, func(_ string, l line) {
		if l.bad() || len(l.code) > MaxLen || splitByREX(l.code) {
			return
		}
		in, err := decodeOne(code[l.address:])
		switch {
		case err != nil && mayOverlook(l.code):
			refused++
		case err != nil || in.Len != len(l.code) || in.Need != o.need(l):
			t.Errorf("%x %s: %+v, %v; objdump %d %+v", l.code, l.text, in, err, len(l.code), o.need(l))
		default:
			same++
		}
	}, "-D", "-b", "binary", "-m", "i386:x86-64", file)
	if same < 50000 || refused > same/1000 {
		t.Errorf("%d instructions are the same, %d refused", same, refused)
	}
}

// splitByREX says whether a legacy prefix follows a REX.
func splitByREX(code []byte) bool {
	head := code[:len(code)-len(behindPrefixes(code))]
	rex := slices.IndexFunc(head, func(b byte) bool { return b>>4 == 4 })
	return rex >= 0 && rex < len(head)-1
}

// mayOverlook says whether code has what objdump may overlook: a mandatory
// prefix, or the W or L of a vector prefix.
func mayOverlook(code []byte) bool {
	opcode := behindPrefixes(code)
	head := code[:len(code)-len(opcode)]
	return slices.Contains([]byte{0xc4, 0xc5, 0x62, 0x8f}, opcode[0]) ||
		opcode[0] == 0x0f && slices.ContainsFunc(head, func(b byte) bool { return b == 0x66 || b == 0xf2 || b == 0xf3 })
}
