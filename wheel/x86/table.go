package x86

import (
	_ "embed" // opcodes.txt
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// opcodes lists the instructions with their needs; its head describes the format.
//
//go:embed opcodes.txt
var opcodes string

// tables returns opcodes in the shape that decode reads.
var tables = sync.OnceValue(func() *table {
	t, err := newTable(opcodes)
	if err != nil {
		panic(err) // opcodes is part of the program, and tested
	}
	return t
})

// table is the lookup table of decode. It never changes after newTable.
type table struct {
	entries    [maps * keyCount][256]entry // by page and opcode
	groups     []group
	needs      []Need
	immediates [immKinds][16]uint8 // sizes in bytes by kind and prefixes.mode
	modRM      [256]uint8          // bytes of ModRM, SIB and displacement by ModRM
}

// entry is one opcode: its form and its need. If the need depends on the ModRM byte, group is the
// index of its group in table.groups; otherwise it is 0.
type entry struct {
	form  form
	need  needID
	group uint16
}

// needID is an index of table.needs.
type needID uint8

const invalid needID = 0 // no instruction

// group holds the needs of one opcode's instructions by slot of their ModRM byte.
type group [8 + 64]needID

// slot returns where a group holds the instruction of a ModRM byte: one for each
// reg field of the memory forms, and one for each byte of the register forms.
func slot(modRM byte) byte {
	if modRM < 0xC0 {
		return modRM >> 3 & 7
	}
	return 8 + modRM&63
}

// Maps, each kind in numeric order.
const (
	mapOneByte = iota
	map0F
	map0F38
	map0F3A
	map3DNow
	mapVEX0F
	mapVEX0F38
	mapVEX0F3A
	mapEVEX0F
	mapEVEX0F38
	mapEVEX0F3A
	mapEVEX5
	mapEVEX6
	mapXOP8
	mapXOP9
	mapXOPA
	maps
)

// keyCount is the number of pages of a map: one for each value of W, L and pp, which are bits 3,
// 2 and 1 to 0 of the key.
const keyCount = 16

// page is an index of table.entries.
func page(m, key uint8) uint8 { return m*keyCount + key }

// newTable reads the text of opcodes.
func newTable(text string) (*table, error) {
	t := &table{groups: make([]group, 1), needs: make([]Need, 1)}
	// Fill in immediates and modRM.
	for mode := range uint8(16) {
		z := byOperandSize(mode, 4, 4, 2)
		t.immediates[immByte][mode] = 1
		t.immediates[immWord][mode] = 2
		t.immediates[immEnter][mode] = 3
		t.immediates[immLong][mode] = 4
		t.immediates[immZ][mode] = z
		t.immediates[immFull][mode] = byOperandSize(mode, 8, 4, 2)
		t.immediates[immAddress][mode] = 8 >> (mode & modeAddr32)
		t.immediates[immTest|immByte][mode] = 1
		t.immediates[immTest|immZ][mode] = z
	}
	for m := range 256 {
		mod, rm := m>>6, m&7
		n := []uint8{1, 2, 5, 1}[mod]
		if mod < 3 && rm == 4 {
			n++ // SIB
		}
		if mod == 0 && rm == 5 {
			n += 4 // relative to the instruction pointer
		}
		t.modRM[m] = n
	}
	// The maps as opcodes names them.
	b := builder{table: t, maps: map[string]uint8{
		"1B": mapOneByte, "0F": map0F, "0F38": map0F38, "0F3A": map0F3A, "3DNOW": map3DNow,
		"VEX.0F": mapVEX0F, "VEX.0F38": mapVEX0F38, "VEX.0F3A": mapVEX0F3A,
		"EVEX.0F": mapEVEX0F, "EVEX.0F38": mapEVEX0F38, "EVEX.0F3A": mapEVEX0F3A,
		"EVEX.5": mapEVEX5, "EVEX.6": mapEVEX6,
		"XOP.8": mapXOP8, "XOP.9": mapXOP9, "XOP.A": mapXOPA,
	}}
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		if err := b.line(strings.Fields(line)); err != nil {
			return nil, fmt.Errorf("opcodes, line %d: %w", i+1, err)
		}
	}
	return t, nil
}

// byOperandSize chooses by operand size: 64, 32 or 16 bits.
func byOperandSize(mode, w, d, s uint8) uint8 {
	switch {
	case mode&modeW != 0:
		return w
	case mode&mode16 != 0:
		return s
	}
	return d
}

// builder turns rows into a table.
type builder struct {
	*table
	maps map[string]uint8
	need needID // of the section
}

// line parses one line of opcodes: the head of a section or a row.
func (b *builder) line(fields []string) error {
	switch {
	case len(fields) == 0:
		return nil
	case fields[0] == "=":
		return b.section(fields[1:])
	case len(fields) < 3:
		return fmt.Errorf("%q is no row", fields)
	case b.need == invalid:
		return errors.New("a row before any section")
	}
	m, ok := b.maps[fields[0]]
	if !ok {
		return fmt.Errorf("no map %q", fields[0])
	}
	// Read a row's second field, such as "-,66.W0", as keys.
	parts := strings.Split(fields[1], ".")
	prefixes := map[string]uint8{"-": 1 << ppNone, "66": 1 << pp66, "F3": 1 << ppF3, "F2": 1 << ppF2, "*": 15}
	bits := map[string][2]uint8{"W0": {8, 0}, "W1": {8, 8}, "L0": {4, 0}, "L1": {4, 4}}
	var pps, mask, want uint8
	for _, p := range strings.Split(parts[0], ",") {
		if prefixes[p] == 0 {
			return fmt.Errorf("no prefix %q", p)
		}
		pps |= prefixes[p]
	}
	for _, p := range parts[1:] {
		if bits[p][0] == 0 {
			return fmt.Errorf("no bit %q", p)
		}
		mask, want = mask|bits[p][0], want|bits[p][1]
	}
	var pages []uint8
	for key := range uint8(keyCount) {
		if pps>>(key&3)&1 == 1 && key&mask == want {
			pages = append(pages, key)
		}
	}

	for _, item := range fields[2:] {
		if err := b.item(m, pages, item); err != nil {
			return fmt.Errorf("%s: %w", item, err)
		}
	}
	return nil
}

// section begins the instructions of one need: LEVEL [FEATURE or mark].
func (b *builder) section(fields []string) error {
	if len(fields) == 0 || len(fields) > 2 {
		return fmt.Errorf("%q is no section", fields)
	}
	level := slices.Index([]string{"v1", "v2", "v3", "v4"}, fields[0])
	if level < 0 {
		return fmt.Errorf("no level %q", fields[0])
	}
	n := Need{Level: Level(level)}
	if len(fields) == 2 {
		switch fields[1] {
		case "?cpuid":
			n.CPUID = true
		case "?xgetbv":
			n.XGETBV = true
		case "?sse":
			n.SSE = true
		case "?gpr":
			n.General = true
		default:
			n.Feature = fields[1]
		}
	}
	if len(b.needs) > math.MaxUint8 {
		return errors.New("one section too many for needID")
	}
	b.need = needID(len(b.needs))
	b.needs = append(b.needs, n)
	return nil
}

// item sets the section's need for one item of a row: one opcode or a range,
// with all ModRM bytes or some.
func (b *builder) item(m uint8, keys []uint8, item string) error {
	first, modRM := item, ""
	if i := strings.IndexAny(item, "/:mr"); i >= 0 {
		first, modRM = item[:i], item[i:]
	}
	from, to, err := hexRange(first)
	if err != nil {
		return err
	}
	slots, err := parseSlots(modRM)
	if err != nil {
		return err
	}
	for opcode := from; opcode <= to; opcode++ {
		for _, key := range keys {
			e := &b.entries[page(m, key)][opcode]
			e.form = formOf(m, key, uint8(opcode))
			if err := b.set(e, slots); err != nil {
				return err
			}
		}
	}
	return nil
}

var errTwice = errors.New("named twice")

// set sets the section's need for the slots of e, or for all of e if slots is nil.
func (b *builder) set(e *entry, slots []int) error {
	if e.need != invalid || slots == nil && e.group != 0 {
		return errTwice
	}
	if slots == nil {
		e.need = b.need
		return nil
	}
	if e.group == 0 {
		e.group = uint16(len(b.groups))
		b.groups = append(b.groups, group{})
	}
	g := &b.groups[e.group]
	for _, s := range slots {
		if g[s] != invalid {
			return errTwice
		}
		g[s] = b.need
	}
	return nil
}

// parseSlots reads the suffix of an opcode: "", "m", "/6", "/0-3r", ":C0-C7". It returns nil for
// all ModRM bytes.
func parseSlots(s string) ([]int, error) {
	if s == "" {
		return nil, nil
	}
	var slots []int
	if bytes, ok := strings.CutPrefix(s, ":"); ok {
		from, to, err := hexRange(bytes)
		for b := max(from, 0xC0); b <= to; b++ {
			slots = append(slots, int(slot(uint8(b))))
		}
		return slots, err
	}
	s, memory := strings.CutSuffix(s, "m")
	s, register := strings.CutSuffix(s, "r")
	from, to := 0, 7
	if regs, ok := strings.CutPrefix(s, "/"); ok {
		var err error
		if from, to, err = hexRange(regs); err != nil || to > 7 {
			return nil, fmt.Errorf("no reg field %q", regs)
		}
	}
	for reg := from; reg <= to; reg++ {
		if !register {
			slots = append(slots, reg)
		}
		for rm := 0; rm < 8 && !memory; rm++ {
			slots = append(slots, 8+reg*8+rm)
		}
	}
	return slots, nil
}

// hexRange reads "A0" or "A0-A7".
func hexRange(s string) (from, to int, err error) {
	a, b, isRange := strings.Cut(s, "-")
	if !isRange {
		b = a
	}
	f, err1 := strconv.ParseUint(a, 16, 8)
	t, err2 := strconv.ParseUint(b, 16, 8)
	if err1 != nil || err2 != nil || f > t {
		return 0, 0, fmt.Errorf("%q is no range of bytes", s)
	}
	return int(f), int(t), nil
}
