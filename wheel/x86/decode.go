// Package x86 reads 64-bit x86 machine code: the length of each instruction and the CPU that it
// needs. It knows no operands and no addresses: it scans code to find out whether an older CPU
// could run all of it.
package x86

import "fmt"

// Level is a micro-architecture level of x86-64: V1 is the baseline (SSE2), and
// each level holds those below it. Source: System V ABI, AMD64 supplement,
// "Micro-Architecture Levels".
type Level uint8

// The levels.
const (
	V1 Level = iota
	V2       // CMPXCHG16B, LAHF, POPCNT, SSE3 to SSE4.2
	V3       // AVX, AVX2, BMI1, BMI2, F16C, FMA, LZCNT, MOVBE, OSXSAVE
	V4       // AVX512F, BW, CD, DQ, VL

	// Levels is how many there are.
	Levels = int(V4) + 1
)

// String returns the name that compilers take for -march: "x86-64",
// "x86-64-v2" and so on.
func (l Level) String() string {
	if l == V1 {
		return "x86-64"
	}
	return fmt.Sprintf("x86-64-v%d", int(l)+1)
}

// MaxLen is the length in bytes that no instruction exceeds.
const MaxLen = 15

// Need is an instruction's requirement on the CPU.
type Need struct {
	Level Level
	// Feature is a required feature that no level includes, mostly none. It has its name in
	// Linux's /proc/cpuinfo ("aes", "avx512_vnni") or, if it is not shown there, in Linux's
	// cpufeatures.h or GCC's -m option.
	Feature string
	// CPUID and XGETBV mark the instructions that ask for the features of the CPU and of the
	// kernel.
	CPUID, XGETBV bool
	// SSE marks vector instructions (MMX, SSE to SSE4.2) in their first encoding.
	// Compilers write none where they may use AVX, which has another for them.
	SSE bool
	// General marks instructions of V3 on general registers (BMI1, BMI2, LZCNT, MOVBE). cpuid alone tells whether a CPU
	// runs them: the system has no registers to save.
	General bool
}

// window holds the bytes that decode looks at: the longest instruction, and one byte more so that
// any index & MaxLen is within, which the compiler then need not check.
type window [MaxLen + 1]byte

// decodeAny decodes the instruction that code begins with. It adds zeros after the end of code: a
// result greater than len(code) means that the instruction used them.
//
// Where Intel and AMD differ, in a 66 prefix before a near branch, decodeAny follows Intel. An
// instruction that only a kernel runs is V1. So is one that an older CPU runs to the same effect
// (tzcnt as bsf) or as a no-op: compilers emit it for all CPUs. decodeAny checks operands only as
// far as they tell instructions apart, so it accepts some code that faults for another reason.
func (t *table) decodeAny(code []byte) (int, needID) {
	if len(code) >= len(window{}) {
		return t.decode((*window)(code))
	}
	var w window
	copy(w[:], code)
	return t.decode(&w)
}

// prefixes holds the effect of the legacy prefixes and REX in front of an opcode.
type prefixes struct {
	pp   uint8 // the mandatory prefix
	mode uint8 // the bits mode…, which determine the sizes of immediates
}

// Mandatory prefixes, as VEX encodes them.
const (
	ppNone = iota
	pp66
	ppF3 // the last of F3 and F2 applies, and takes precedence over 66
	ppF2
)

const (
	modeAddr32 = 1 << 0 // prefix 67
	mode16     = 1 << 1 // prefix 66
	modeW      = 1 << 3 // REX.W, at its place in REX
)

// decode returns the length of an instruction and its need. If the bytes are no instruction, it
// returns the number of bytes that show it, and invalid.
func (t *table) decode(c *window) (int, needID) {
	var p prefixes
	for i := range MaxLen {
		b := c[i]
		switch leads[b] {
		case leadOpcode:
			return t.opcode(c, i, page(mapOneByte, p.key()), p.mode)
		case leadREX: // counts only where the opcode follows at once
			p.mode = p.mode&^modeW | b&modeW
			continue
		case lead0F:
			return t.escape(c, i+1, p)
		case lead66:
			p.mode |= mode16
			p.pp = max(p.pp, pp66)
		case leadF2:
			p.pp = ppF2
		case leadF3:
			p.pp = ppF3
		case lead67:
			p.mode |= modeAddr32
		case leadVector:
			return t.vector(c, i, p)
		case leadLockOrSegment:
		}
		p.mode &^= modeW
	}
	return MaxLen, invalid
}

// key returns the legacy opcode's key.
func (p prefixes) key() uint8 { return p.mode&modeW | p.pp }

// escape decodes the bytes that follow the byte 0F.
func (t *table) escape(c *window, i int, p prefixes) (int, needID) {
	switch c[i&MaxLen] {
	case 0x38:
		return t.opcode(c, i+1, page(map0F38, p.key()), p.mode)
	case 0x3A:
		return t.opcode(c, i+1, page(map0F3A, p.key()), p.mode)
	case 0x0F: // 3DNow!: the opcode is the last byte, where others have an immediate
		end := t.end(c, i+1, hasModRM|immByte, p.mode)
		if end > MaxLen {
			return MaxLen, invalid
		}
		return end, t.entries[page(map3DNow, 0)][c[end-1]].need
	}
	return t.opcode(c, i, page(map0F, p.key()), p.mode)
}

// vector decodes an instruction that begins with VEX, EVEX or XOP. The bytes after that prefix are
//
//	C5  R vvvv L pp
//	C4  RXB mmmmm, W vvvv L pp
//	8F  RXB mmmmm, W vvvv L pp (XOP; a pop where mmmmm is below 8)
//	62  RXBR' 0mmm, W vvvv 1 pp, z L'L b V' aaa
func (t *table) vector(c *window, i int, p prefixes) (int, needID) {
	first, second := c[(i+1)&MaxLen], c[(i+2)&MaxLen]
	key := second>>4&modeW | second&7
	switch c[i&MaxLen] {
	case 0xC5:
		return t.opcode(c, i+2, page(mapVEX0F, first&7), 0)
	case 0xC4:
		if m := first & 31; m >= 1 && m <= 3 {
			return t.opcode(c, i+3, page(mapVEX0F+m-1, key), 0)
		}
	case 0x8F:
		m := first & 31
		if m < 8 {
			return t.opcode(c, i, page(mapOneByte, p.key()), p.mode)
		}
		if m <= 10 {
			return t.opcode(c, i+3, page(mapXOP8+m-8, key), 0)
		}
	case 0x62:
		m, ok := evexMap(first & 15)
		if ok && second&4 == 0 {
			return min(i+3, MaxLen), invalid
		}
		if ok {
			return t.opcode(c, i+4, page(m, key&^4), 0)
		}
	}
	return min(i+2, MaxLen), invalid
}

// evexMap returns the map of the number in an EVEX prefix.
func evexMap(m uint8) (uint8, bool) {
	switch m {
	case 1, 2, 3:
		return mapEVEX0F + m - 1, true
	case 5, 6:
		return mapEVEX5 + m - 5, true
	}
	return 0, false
}

// opcode decodes from the opcode on, which is at i.
func (t *table) opcode(c *window, i int, page, mode uint8) (int, needID) {
	e := t.entries[page][c[i&MaxLen]]
	i++
	seen := i
	if e.group != 0 {
		e.need = t.groups[e.group][slot(c[i&MaxLen])]
		seen++
	}
	if e.need == invalid {
		return min(seen, MaxLen), invalid
	}
	end := t.end(c, i, e.form, mode)
	if end > MaxLen {
		return MaxLen, invalid
	}
	return end, e.need
}

// end returns where an instruction of the given form ends whose opcode ends at i.
func (t *table) end(c *window, i int, f form, mode uint8) int {
	imm := int(t.immediates[f&immMask][mode&15])
	if f&hasModRM == 0 {
		return i + imm
	}
	modRM := c[i&MaxLen]
	i += int(t.modRM[modRM])
	if modRM&0xC7 == 4 && c[(i-1)&MaxLen]&7 == 5 {
		i += 4 // SIB without a base register: a displacement in its place
	}
	if f&immTest != 0 && modRM&0x30 != 0 {
		return i // of the group F6, F7 only test has an immediate
	}
	return i + imm
}
