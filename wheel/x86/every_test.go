package x86

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// encoding is one instruction put together from its parts.
type encoding struct {
	m, op byte
	form  string // what it is a variant of
	code  []byte
}

// everyOpcode puts together instructions with every opcode of every map, with
// each mandatory prefix, W and L, with a memory operand and with a register, and
// with all reg fields where these tell instructions apart.
func everyOpcode() []encoding {
	var out []encoding
	for m := range uint8(maps) {
		for key := range uint8(keyCount) {
			for op := range 256 {
				grouped := m <= map0F || tables().entries[page(m, key)][op].group != 0
				for _, head := range heads(m, key, uint8(op)) {
					for _, e := range withOperands(m, uint8(op), head, grouped) {
						e.form = fmt.Sprintf("map %d, key %04b, opcode %02x, %s", m, key, op, e.form)
						out = append(out, e)
					}
				}
			}
		}
	}
	return out
}

// heads returns what stands before ModRM, in the variants that a CPU may tell
// apart. It is none for what no encoding can say.
func heads(m, key, op uint8) [][]byte {
	pp, l, w := key&3, key>>2&1, key>>3
	vvvv := w<<7 | 15<<3
	switch {
	case m == mapOneByte && leads[op] != leadOpcode:
		return nil
	case m == map0F && (op == 0x38 || op == 0x3a || op == 0x0f):
		return nil
	case m < mapVEX0F:
		if l == 1 {
			return nil
		}
		var head []byte
		if pp > 0 {
			head = append(head, [...]byte{pp66: 0x66, ppF3: 0xf3, ppF2: 0xf2}[pp])
		}
		if w == 1 {
			head = append(head, 0x48)
		}
		head = append(head, [...]string{mapOneByte: "", map0F: "\x0f", map0F38: "\x0f\x38", map0F3A: "\x0f\x3a", map3DNow: "\x0f\x0f"}[m]...)
		if m != map3DNow {
			head = append(head, op)
		}
		return [][]byte{head}
	case m < mapEVEX0F:
		return [][]byte{{0xc4, 0xe0 | (m - mapVEX0F + 1), vvvv | l<<2 | pp, op}}
	case m < mapXOP8:
		if l == 1 {
			return nil
		}
		number := [...]byte{1, 2, 3, 5, 6}[m-mapEVEX0F]
		var out [][]byte
		for _, last := range []byte{8, 2<<5 | 8 | 1} { // 128 bits, 512 bits masked by k1: each may allow but one
			out = append(out, []byte{0x62, 0xf0 | number, vvvv | 4 | pp, last, op})
		}
		return out
	}
	return [][]byte{{0x8f, 0xe8 + (m - mapXOP8), vvvv | l<<2 | pp, op}}
}

// withOperands adds ModRM and SIB bytes, and what 3DNow! has last.
func withOperands(m, op byte, head []byte, allRegs bool) []encoding {
	var out []encoding
	for reg := range byte(8) {
		if reg != 1 && !allRegs {
			continue
		}
		for _, operand := range [][]byte{{0x04 | reg<<3, 0x98}, {0xc0 | reg<<3}} {
			code := slices.Concat(head, operand)
			if m == map3DNow {
				code = append(code, op)
			}
			out = append(out, encoding{m, op, fmt.Sprintf("reg %d, mod %d", reg, operand[0]>>6), code})
		}
	}
	return out
}

// padded is an encoding followed by immediates enough, of which those left over
// are, with the no-op at the end, a single instruction: the next encoding
// begins where objdump is at one with the code again.
func (e encoding) padded() []byte {
	code := append(e.code[:len(e.code):len(e.code)], make([]byte, 12)...)
	for i := len(e.code); i < len(code); i++ {
		code[i] = 0x3e // segment DS
	}
	return append(code, 0x90)
}

// assemble writes the encodings into a file of nothing but code. It returns
// where each begins.
func assemble(t *testing.T, all []encoding) (file string, code []byte, at map[uint64]encoding) {
	t.Helper()
	at = map[uint64]encoding{}
	for _, e := range all {
		at[uint64(len(code))] = e
		code = append(code, e.padded()...)
	}
	file = filepath.Join(t.TempDir(), "code")
	if err := os.WriteFile(file, code, 0o600); err != nil {
		t.Fatal(err)
	}
	return file, code, at
}

// TestEveryOpcode compares every opcode there is with objdump: whether it is an
// instruction, how long, and what it needs.
func TestEveryOpcode(t *testing.T) {
	file, code, at := assemble(t, everyOpcode())
	strict := strings.Contains(run(t, "objdump", "--version"), ") 2.40\n")
	o := oracle{}
	same := 0
	ours, theirs := map[string]encoding{}, map[string]bool{} // accepted by form
	objdump(t, func(_ string, l line) {
		e, found := at[l.address]
		if !found {
			return
		}
		delete(at, l.address)
		in, err := decodeOne(code[l.address:])
		if err == nil {
			ours[e.form] = e
		}
		if l.bad() {
			return
		}
		theirs[e.form] = true
		switch {
		case err == nil && (in.Len != len(l.code) || in.Need != o.need(l)):
			t.Errorf("%s: %x %s: %+v, objdump %d %+v", e.form, l.code, l.text, in, len(l.code), o.need(l))
		case err != nil && strict && !objdumpAlone[e.m][e.op]:
			t.Errorf("%s: %x %s is unknown here", e.form, l.code, l.text)
		case err == nil:
			same++
		}
	}, "-D", "-b", "binary", "-m", "i386:x86-64", file)
	for form, e := range ours {
		if !theirs[form] && strict && !oursAlone[e.m][e.op] {
			t.Errorf("%s: %x is unknown to objdump", form, e.code)
		}
	}
	if len(at) > 0 || same < 40000 {
		t.Errorf("%d instructions are the same; %d encodings were not reached", same, len(at))
	}
}

type opcodeSet map[byte]bool

func set(opcodes ...byte) opcodeSet {
	s := opcodeSet{}
	for _, op := range opcodes {
		s[op] = true
	}
	return s
}

// objdumpAlone are opcodes some of whose encodings objdump 2.40 reads although
// the manuals have none: it overlooks a mandatory prefix, W or L.
var objdumpAlone = map[byte]opcodeSet{
	map0F:       set(0x01, 0x78, 0xae, 0xc7, 0xd7),
	mapVEX0F:    set(0x77),
	mapVEX0F38:  set(0x49),
	mapEVEX0F:   set(0x10, 0x11, 0x12, 0x16, 0x2e, 0x2f, 0x51, 0x58, 0x59, 0x5c, 0x5d, 0x5e, 0x5f, 0xe7),
	mapEVEX0F38: set(0x29, 0x2a, 0x39, 0x4e, 0x50, 0x51, 0x8f),
	mapEVEX0F3A: set(0x42, 0x70, 0x72),
	mapXOPA:     set(0x10),
}

// oursAlone are opcodes some of whose encodings only we read: those newer than
// binutils 2.40 (AVX-VNNI-INT16, SHA512, SM3, SM4, AMX-COMPLEX), hints that any
// CPU takes as no-ops (0D, 1A, 1B), a prefix that the CPU ignores (BC, BD), and
// those whose registers must differ (AMX, gathers), which is not checked.
var oursAlone = map[byte]opcodeSet{
	map0F:       set(0x0d, 0x1a, 0x1b, 0xbc, 0xbd),
	mapVEX0F38:  set(0x5c, 0x5e, 0x6c, 0x90, 0x91, 0x92, 0x93, 0xcb, 0xcc, 0xcd, 0xd2, 0xd3, 0xda),
	mapVEX0F3A:  set(0xde),
	mapEVEX0F38: set(0x90, 0x91, 0x92, 0x93),
}
