package wheel

import (
	"encoding/binary"
	"maps"
	"slices"
)

// armForm is a class of instructions of 64-bit Arm: those whose bits under mask are value.
type armForm struct {
	feature     string // that a CPU must have, named as /proc/cpuinfo does
	mask, value uint32
}

// armForms are the instructions beyond Armv8-A with NEON. The first match applies. Source: Arm
// Architecture Reference Manual (DDI 0487), section C4.1.
var armForms = []armForm{
	{"sve", 0x1E000000, 0x04000000},
	{"sme", 0x9E000000, 0x80000000},
	{"lrcpc", 0x3FFFFC00, 0x38BFC000},
	{atomics, 0x3F200C00, 0x38200000}, // LDADD, SWP …
	{atomics, 0x3FA07C00, 0x08A07C00}, // CAS
	{atomics, 0xBFA07C00, 0x08207C00}, // CASP
	{"crc32", 0x7FE0E000, 0x1AC04000},
	{"asimdrdm", 0xBF20F400, 0x2E008400},
	{"asimdrdm", 0xBF00D400, 0x2F00D000}, // by element
	{"i8mm", 0xDFE0FC00, 0x4E80A400},     // SMMLA, UMMLA
	{"i8mm", 0xFFE0FC00, 0x4E80AC00},     // USMMLA
	{"i8mm", 0xBFE0FC00, 0x0E809C00},     // USDOT
	{"i8mm", 0xBF40F400, 0x0F00F000},     // USDOT, SUDOT by element
	{"asimddp", 0x9FE0FC00, 0x0E809400},  // SDOT, UDOT
	{"asimddp", 0x9FC0F400, 0x0F80E000},  // by element
	{"bf16", 0xBFE0FC00, 0x2E40FC00},     // BFDOT
	{"bf16", 0xBFE0FC00, 0x2EC0FC00},     // BFMLAL
	{"bf16", 0xFFE0FC00, 0x6E40EC00},     // BFMMLA
	{"bf16", 0xBFFFFC00, 0x0EA16800},     // BFCVTN
	{"bf16", 0xFFFFFC00, 0x1E634000},     // BFCVT
	{"bf16", 0xBF40F400, 0x0F40F000},     // by element
	{"jscvt", 0xFFFFFC00, 0x1E7E0000},
	{"fcma", 0xBF20EC00, 0x2E00E400},    // FCADD
	{"fcma", 0xBF20E400, 0x2E00C400},    // FCMLA
	{"asimdhp", 0x9F60C400, 0x0E400400}, // vectors of half precision, three registers
	{"asimdhp", 0x9F7E0C00, 0x0E780800}, // two registers
	{"fphp", 0xFFE00C00, 0x1EE00800},    // two numbers of half precision
	{"fphp", 0xFFC00000, 0x1FC00000},    // FMADD
	{"paca", 0xFE9FF800, 0xD61F0800},    // BRAA, RETAA …, not those that older CPUs take for NOP
}

const atomics = "atomics"

// armFeature returns the feature beyond Armv8-A with NEON that an instruction needs, or "".
func armFeature(word uint32) string {
	for _, f := range armForms {
		if word&f.mask == f.value {
			return f.feature
		}
	}
	return ""
}

// armFeatures counts instructions by the feature that they need.
type armFeatures map[string]int64

// needed lists the features, sorted.
func (f armFeatures) needed() []string {
	names := slices.AppendSeq([]string{}, maps.Keys(f))
	slices.Sort(names)
	return slices.DeleteFunc(names, func(name string) bool { return f[name] == 0 })
}

// armCode is a Writer that counts the instructions of a section.
type armCode struct {
	found armFeatures
	rest  []byte    // of an instruction that is not complete yet
	past  [4]uint32 // the instructions before, newest last
}

func (c *armCode) Write(p []byte) (int, error) {
	n := len(p)
	p = append(c.rest, p...)
	for ; len(p) >= 4; p = p[4:] {
		word := binary.LittleEndian.Uint32(p)
		if feature := armFeature(word); feature != "" {
			c.found[feature]++
		}
		if c.endsTestedAtomic(word) {
			c.found[atomics]--
		}
		c.past = [4]uint32{c.past[1], c.past[2], c.past[3], word}
	}
	c.rest = append([]byte(nil), p...)
	return n, nil
}

// endsTestedAtomic reports whether word ends a path of libgcc's functions for atomic operations
// (__aarch64_ldadd4_acq_rel and others), which test the CPU first: adrp x16; ldrb w16, [x16,
// __aarch64_have_lse_atomics]; cbz w16; the instruction; ret.
func (c *armCode) endsTestedAtomic(word uint32) bool {
	t := c.past
	return word == 0xD65F03C0 && t[0]&0x9F00001F == 0x90000010 && t[1]&0xFFC003FF == 0x39400210 &&
		t[2]&0xFF00001F == 0x34000010 && armFeature(t[3]) == atomics
}
