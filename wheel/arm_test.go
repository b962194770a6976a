package wheel

import (
	"encoding/binary"
	"slices"
	"testing"
)

// The words are what GNU as makes of the instructions.
func TestArmFeature(t *testing.T) {
	for word, want := range map[uint32]string{
		0xb8200041: atomics,    // ldadd w0, w1, [x2]
		0x88a07c41: atomics,    // cas w0, w1, [x2]
		0x1ac24020: "crc32",    // crc32b w0, w1, w2
		0x4e829420: "asimddp",  // sdot v0.4s, v1.16b, v2.16b
		0x4e82ac20: "i8mm",     // usmmla v0.4s, v1.16b, v2.16b
		0x6e42fc20: "bf16",     // bfdot v0.4s, v1.8h, v2.8h
		0x1e634020: "bf16",     // bfcvt h0, s1
		0x4e421420: "asimdhp",  // fadd v0.8h, v1.8h, v2.8h
		0x1fc20c20: "fphp",     // fmadd h0, h1, h2, h3
		0x65820020: "sve",      // fadd z0.s, z1.s, z2.s
		0xb8bfc020: "lrcpc",    // ldapr w0, [x1]
		0x6e82cc20: "fcma",     // fcmla v0.4s, v1.4s, v2.4s, #90
		0x6e828420: "asimdrdm", // sqrdmlah v0.4s, v1.4s, v2.4s
		0x1e7e0020: "jscvt",    // fjcvtzs w0, d1
		0xd65f0bff: "paca",     // retaa
		0xd503233f: "",         // paciasp, a NOP for older CPUs
		0x4e22cc20: "",         // fmla v0.4s, v1.4s, v2.4s
		0x885f7c20: "",         // ldxr w0, [x1]
		0xd65f03c0: "",         // ret
		0:          "",
	} {
		if got := armFeature(word); got != want {
			t.Errorf("%#08x needs %q, want %q", word, got, want)
		}
	}
}

// An atomic instruction counts, unless it stands behind libgcc's test of the CPU; however the bytes are cut.
func TestArmCode(t *testing.T) {
	const ldadd, ret = 0xb8e00020, 0xd65f03c0
	tested := []uint32{0x90000010, 0x39400210, 0x34000070, ldadd, ret}
	for name, c := range map[string]struct {
		words []uint32
		want  []string
	}{
		"tested":     {tested, []string{}},
		"not tested": {[]uint32{0x90000010, 0x39400210, 0xd503201f, ldadd, ret}, []string{atomics}},
		"both":       {slices.Concat(tested, []uint32{ldadd, 0x65820020}), []string{atomics, "sve"}},
	} {
		var code []byte
		for _, w := range c.words {
			code = binary.LittleEndian.AppendUint32(code, w)
		}
		for cut := range code {
			found := armFeatures{}
			scan := &armCode{found: found}
			for _, part := range [][]byte{code[:cut], code[cut:]} {
				if _, err := scan.Write(part); err != nil {
					t.Fatal(err)
				}
			}
			if got := found.needed(); !slices.Equal(got, c.want) {
				t.Errorf("%s, cut at %d: %q, want %q", name, cut, got, c.want)
			}
		}
	}
}
