package elf

import (
	"cmp"
	"debug/elf"
	"fmt"
	"slices"
	"strings"
)

// table is a part of the file that the first reading kept.
type table struct {
	name string
	off  uint64
	data []byte
}

// layout holds the places of an object's parts.
type layout struct {
	header
	size     uint64
	kept     uint64  // bytes held in memory
	tables   []table // the headers: the second reading must find them again
	names    table   // of the sections, also read twice
	programs []program
	sections []Section // by index
}

func readLayout(f *file, h header, raw []byte) (*layout, error) {
	l := &layout{header: h, size: f.size, tables: []table{{headerName, 0, raw}}}
	// A number below 0xffff is in the ELF header, and the program headers stand before the
	// sections.
	if h.nPrograms < 0xffff {
		if err := l.readPrograms(f, uint64(h.nPrograms)); err != nil {
			return nil, err
		}
	}
	if err := l.readSections(f); err != nil {
		return nil, err
	}
	if h.nPrograms == 0xffff {
		if err := l.readPrograms(f, uint64(l.sections[0].info)); err != nil {
			return nil, err
		}
	}
	return l, l.check()
}

// checkInside checks that n bytes at off are within the file.
func (l *layout) checkInside(name string, off, n uint64) error {
	if off > l.size || n > l.size-off {
		return formatError(name, off, "%d bytes, but the file ends at 0x%x", n, l.size)
	}
	return nil
}

// keep counts n bytes that are held in memory. More than maxKept is an error.
func (l *layout) keep(name string, off, n uint64) error {
	if n > maxKept || l.kept+n > maxKept {
		return formatError(name, off, "needs %d bytes of memory, %d of %d are used", n, l.kept, maxKept)
	}
	l.kept += n
	return nil
}

// fetch reads a table and keeps it.
func (l *layout) fetch(f *file, name string, off, n uint64) (table, error) {
	if err := l.checkInside(name, off, n); err != nil {
		return table{}, err
	}
	if err := l.keep(name, off, n); err != nil {
		return table{}, err
	}
	data, err := f.fetch(off, n)
	return table{name, off, data}, err
}

func (l *layout) readPrograms(f *file, n uint64) error {
	const name = "the program headers"
	off := l.programsAt
	if n == 0 {
		return nil
	}
	if l.programEnt != programSize {
		return formatError(name, off, "%d bytes each, not %d", l.programEnt, programSize)
	}
	t, err := l.fetch(f, name, off, n*programSize)
	if err != nil {
		return err
	}
	l.tables = append(l.tables, t)
	for raw := t.data; len(raw) >= programSize; raw = raw[programSize:] {
		l.programs = append(l.programs, program{
			elf.ProgType(le.Uint32(raw)),
			le.Uint64(raw[8:]), le.Uint64(raw[16:]), le.Uint64(raw[32:]), le.Uint64(raw[48:]),
		})
	}
	return nil
}

// readSections reads the section headers and the names of the sections.
func (l *layout) readSections(f *file) error {
	const name = "the section headers"
	off := l.sectionsAt
	if l.sectionEnt != sectionSize {
		return formatError(name, off, "%d bytes each, not %d", l.sectionEnt, sectionSize)
	}
	t, err := l.fetch(f, name, off, sectionSize)
	if err != nil {
		return err
	}
	// The first section header holds the values that do not fit into the ELF header.
	first, _ := parseSection(0, t.data)
	n, names := uint64(l.nSections), uint32(l.namesIn)
	n = cmp.Or(n, first.Size)
	if elf.SectionIndex(names) == elf.SHN_XINDEX {
		names = first.link
	}
	if n == 0 || n > maxSections {
		return formatError(name, off, "%d of them, 1 to %d can be read", n, maxSections)
	}
	rest, err := l.fetch(f, name, off+sectionSize, (n-1)*sectionSize)
	if err != nil {
		return err
	}
	t.data = slices.Concat(t.data, rest.data)
	l.tables = append(l.tables, t)
	l.sections = make([]Section, n)
	nameAt := make([]uint32, n)
	for i := range l.sections {
		l.sections[i], nameAt[i] = parseSection(i, t.data[i*sectionSize:])
		l.sections[i].Machine = l.machine.name
	}
	return l.readNames(f, names, nameAt)
}

// readNames names the sections, by the section that holds the names.
func (l *layout) readNames(f *file, index uint32, at []uint32) error {
	if index == uint32(elf.SHN_UNDEF) {
		return nil
	}
	const name = "the section names"
	if uint64(index) >= uint64(len(l.sections)) {
		return formatError(headerName, 62, "section names are in section %d of %d", index, len(l.sections))
	}
	s := l.sections[index]
	if s.Type != elf.SHT_STRTAB {
		return formatError(name, s.Offset, "section %d is no string table but %v", index, s.Type)
	}
	var err error
	if l.names, err = l.fetch(f, name, s.Offset, s.Size); err != nil {
		return err
	}
	all := string(l.names.data)
	for i := range l.sections {
		if l.sections[i].Name, err = text(all, uint64(at[i])); err != nil {
			return formatError(name, s.Offset, "section %d: %v", i, err)
		}
	}
	return nil
}

// check rejects sections that overlap or extend beyond the file.
func (l *layout) check() error {
	var spans []span
	for _, t := range l.tables {
		spans = append(spans, span{name: t.name, off: t.off, end: t.off + uint64(len(t.data))})
	}
	for _, s := range l.sections {
		if !s.stored() {
			continue
		}
		if err := l.checkInside(s.label(), s.Offset, s.Size); err != nil {
			return err
		}
		spans = append(spans, span{name: s.label(), off: s.Offset, end: s.end()})
	}
	slices.SortFunc(spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.off, b.off), cmp.Compare(a.end, b.end), cmp.Compare(a.name, b.name))
	})
	for i := 1; i < len(spans); i++ {
		if a, b := spans[i-1], spans[i]; b.off < a.end {
			return formatError(b.name, b.off, "crossed with %s, which ends at 0x%x", a.name, a.end)
		}
	}
	return nil
}

// text returns the string at off of a table of strings.
func text(table string, off uint64) (string, error) {
	if off >= uint64(len(table)) {
		return "", fmt.Errorf("its name is at %d of %d bytes of strings", off, len(table))
	}
	rest := table[off:]
	n := strings.IndexByte(rest[:min(len(rest), maxName+1)], 0)
	switch {
	case n >= 0:
		return rest[:n], nil
	case len(rest) > maxName:
		return "", fmt.Errorf("its name is longer than %d bytes", maxName)
	default:
		return "", fmt.Errorf("its name at %d does not end", off)
	}
}
