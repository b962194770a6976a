package x86

import (
	"bytes"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"
)

// code reads hexadecimal digits with spaces.
func code(t testing.TB, digits string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var (
	// errTruncated says that the code ends within the instruction.
	errTruncated = errors.New("x86: the instruction is truncated")
	// errInvalid says that the bytes are no instruction, or none known here.
	errInvalid = errors.New("x86: no instruction")
)

// inst is one instruction.
type inst struct {
	Len int // in bytes, prefixes included: 1 to MaxLen
	Need
}

// decodeOne reads the instruction that code begins with. The error is errTruncated if code holds
// only the beginning of one, and errInvalid if it begins none.
func decodeOne(code []byte) (inst, error) {
	t := tables()
	n, need := t.decodeAny(code)
	switch {
	case n > len(code):
		return inst{}, errTruncated
	case need == invalid:
		return inst{}, errInvalid
	}
	return inst{Len: n, Need: t.needs[need]}, nil
}

// What a manual says and objdump cannot be asked, or says differently.
func TestDecode(t *testing.T) {
	for _, c := range []struct {
		code string // the instruction, padded with more by the test
		need Need
		what string
	}{
		{"48 48 89 c0", Need{}, "only the last REX counts"},
		{"48 66 b8 34 12", Need{}, "a REX before another prefix does not: 16-bit immediate"},
		{"66 48 b8 01 02 03 04 05 06 07 08", Need{}, "REX.W before prefix 66"},
		{"48 c7 c0 01 02 03 04", Need{}, "with REX.W still 32 bits"},
		{"67 a1 01 02 03 04", Need{}, "address of 32 bits"},
		{"48 a1 01 02 03 04 05 06 07 08", Need{}, "address of 64 bits"},
		{"66 e8 01 02 03 04", Need{}, "near branches ignore prefix 66, as Intel has it"},
		{"66 0f 84 01 02 03 04", Need{}, "likewise conditional ones"},
		{"66 66 48 e8 01 02 03 04", Need{}, "a call as linkers pad it"},
		{"f6 c1 01", Need{}, "test has an immediate"},
		{"f6 d1", Need{}, "not, of the same opcode, has none"},
		{"66 f7 c1 01 02", Need{}, "test of 16 bits"},
		{"f7 8c 24 01 02 03 04 05 06 07 08", Need{}, "/1 is test too"},
		{"c8 10 00 01", Need{}, "enter"},
		{"9b", Need{}, "fwait is one by itself"},
		{"8f 00", Need{}, "pop, although 8F begins XOP"},
		{"0f 20 00", Need{}, "control registers: ModRM's mod is ignored"},
		{"f3 0f bc c1", Need{}, "tzcnt: older CPUs run bsf"},
		{"f3 0f bd c1", Need{Level: V3, General: true}, "lzcnt: older CPUs run bsr, which differs"},
		{"f2 f3 0f bd c1", Need{Level: V3, General: true}, "the last of F2 and F3 counts"},
		{"66 f3 0f b8 c1", Need{Level: V2}, "popcnt of 16 bits: 66 beside F3"},
		{"f3 0f 1e fa", Need{}, "endbr64"},
		{"0f c7 0e", Need{}, "cmpxchg8b"},
		{"48 0f c7 0e", Need{Level: V2}, "cmpxchg16b"},
		{"66 f2 0f 38 f1 c1", Need{Level: V2}, "crc32, not movbe"},
		{"66 0f 38 f1 01", Need{Level: V3, General: true}, "movbe, not crc32"},
		{"0f 0f c1 bf", Need{Feature: "3dnow"}, "3DNow!: the opcode comes last"},
		{"66 0f 78 c1 01 02", Need{Feature: "sse4a"}, "extrq: two immediates"},
		{"c5 f8 77", Need{Level: V3}, "vzeroupper: no ModRM"},
		{"c4 e2 7d dc c1", Need{Level: V3, Feature: "vaes"}, "VEX.256: the new AES"},
		{"c4 e2 79 dc c1", Need{Level: V3, Feature: "aes"}, "VEX.128: the old AES"},
		{"c5 fb 92 c8", Need{Level: V4}, "kmovd, encoded as VEX"},
		{"8f ea 78 10 c1 01 02 03 04", Need{Feature: "tbm"}, "bextr of TBM: 32 bits"},
		{"62 f1 7c 48 58 84 88 01 02 03 04", Need{Level: V4}, "EVEX with SIB and displacement"},
		{"66 2e 0f 1f 84 00 00 00 00 00", Need{}, "a long no-op"},
		{"2e 2e 2e 2e 2e 2e 2e 2e 2e 2e 2e 2e 2e 2e 90", Need{}, "15 bytes"},
		{"c7 f8 01 02 03 04", Need{Feature: "rtm"}, "xbegin"},
		{"0f a2", Need{CPUID: true}, "cpuid"},
		{"0f 01 d0", Need{XGETBV: true}, "xgetbv"},
		// Newer than the assembler that the other tests use.
		{"c4 e2 7f cb c1", Need{Level: V3, Feature: "sha512"}, "vsha512rnds2"},
		{"c4 e2 70 da c1", Need{Level: V3, Feature: "sm3"}, "vsm3msg1"},
		{"c4 e3 71 de c1 01", Need{Level: V3, Feature: "sm3"}, "vsm3rnds2"},
		{"c4 e2 72 da c1", Need{Level: V3, Feature: "sm4"}, "vsm4key4"},
		{"c4 e2 71 d2 c1", Need{Level: V3, Feature: "avx_vnni_int16"}, "vpdpwusd"},
		{"c4 e2 70 6c c1", Need{Level: V3, Feature: "amx_complex"}, "tcmmrlfp16ps"},
	} {
		want := inst{Len: len(code(t, c.code)), Need: c.need}
		padded := append(code(t, c.code), bytes.Repeat([]byte{0x90}, MaxLen)...)
		if got, err := decodeOne(padded); err != nil || got != want {
			t.Errorf("%s (%s): %+v, %v; want %+v", c.code, c.what, got, err, want)
		}
		for n := range want.Len {
			if _, err := decodeOne(padded[:n]); !errors.Is(err, errTruncated) {
				t.Errorf("%d bytes of %s: %v", n, c.code, err)
			}
		}
	}
}

func TestDecodeInvalid(t *testing.T) {
	for what, digits := range map[string]string{
		"opcode of 32-bit code":        "06",
		"REX2, of APX":                 "d5",
		"opcode in no map":             "0f 04",
		"reserved reg field":           "fe d0",
		"reserved x87":                 "d9 d8",
		"VEX of map 0":                 "c4 e0",
		"EVEX of map 4, of APX":        "62 f4",
		"EVEX with its fixed bit 0":    "62 f1 78",
		"mandatory prefix missing":     "0f b8",
		"lea of a register":            "8d c0",
		"15 prefixes":                  "66 66 66 66 66 66 66 66 66 66 66 66 66 66 66",
		"16 bytes with its immediates": "2e 2e 2e 2e 2e 2e 48 b8 01 02 03 04 05 06 07",
	} {
		b := code(t, digits)
		for _, more := range [][]byte{nil, make([]byte, MaxLen)} {
			if in, err := decodeOne(slices.Concat(b, more)); !errors.Is(err, errInvalid) {
				t.Errorf("%s (%s): %+v, %v", digits, what, in, err)
			}
		}
		if in, err := decodeOne(b[:len(b)-1]); !errors.Is(err, errTruncated) {
			t.Errorf("%s without its last byte: %+v, %v", digits, in, err)
		}
	}
}

func TestLevelString(t *testing.T) {
	for level, want := range map[Level]string{V1: "x86-64", V2: "x86-64-v2", V4: "x86-64-v4"} {
		if level.String() != want {
			t.Errorf("%d: %s", level, level)
		}
	}
}

// A table that says something twice or nothing at all is refused.
func TestNewTable(t *testing.T) {
	for text, want := range map[string]string{
		"= v1\n1B * 00 01\n1B 66 01":    "line 3: 01: named twice",
		"= v1\n1B * FF/0-2\n1B * FF/2m": "line 3: FF/2m: named twice",
		"= v1\n1B * FF\n1B * FF/2m":     "named twice",
		"= v5":                          `no level "v5"`,
		"=":                             "is no section",
		"= v1 a b":                      "is no section",
		"= v1\n2B * 00":                 `no map "2B"`,
		"= v1\n1B F1 00":                `no prefix "F1"`,
		"= v1\n1B *.W2 00":              `no bit "W2"`,
		"= v1\n1B * 0G":                 "no range of bytes",
		"= v1\n1B * 09-08":              "no range of bytes",
		"= v1\n1B * 00/8":               "no reg field",
		"= v1\n1B *":                    "is no row",
		"1B * 00":                       "before any section",
		"= v1\n1B * 00 # 00\n\n1B * 01": "",
	} {
		_, err := newTable(text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{"90", "48b80102030405060708", "62f17c48588488", "c4e27ddcc1", "8fea7810c1", "0f0fc1bf", "f2f366674f0f38"} {
		f.Add(code(f, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in, err := decodeOne(b)
		again, err2 := decodeOne(append(slices.Clone(b), 0xff, 0, 0x90))
		switch {
		case errors.Is(err, errTruncated):
			if in != (inst{}) || len(b) >= MaxLen {
				t.Fatalf("%x: %+v, %v", b, in, err)
			}
		case err != nil:
			if !errors.Is(err2, errInvalid) || in != (inst{}) {
				t.Fatalf("%x: %v, with more behind it %+v, %v", b, err, again, err2)
			}
		case in != again || err2 != nil:
			t.Fatalf("%x: %+v, with more behind it %+v, %v", b, in, again, err2)
		case in.Len < 1 || in.Len > MaxLen || in.Len > len(b):
			t.Fatalf("%x: %d bytes long", b, in.Len)
		}
	})
}
