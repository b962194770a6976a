package elf

import (
	"debug/elf"
	"fmt"
)

// dynamic is the table that lists an object's needs for the loader.
type dynamic struct {
	needs, rpath, runpath, soname []uint64 // offsets of strings
	// value holds the other entries that are used here: DT_STRTAB, DT_STRSZ, DT_SYMTAB,
	// DT_VERNEED.
	value map[elf.DynTag]uint64
}

func parseDynamic(raw []byte) dynamic {
	d := dynamic{value: map[elf.DynTag]uint64{}}
	for ; len(raw) >= dynamicSize; raw = raw[dynamicSize:] {
		tag, value := elf.DynTag(int64(le.Uint64(raw))), le.Uint64(raw[8:])
		switch tag {
		case elf.DT_NULL:
			return d
		case elf.DT_NEEDED:
			d.needs = append(d.needs, value)
		case elf.DT_RPATH:
			d.rpath = append(d.rpath, value)
		case elf.DT_RUNPATH:
			d.runpath = append(d.runpath, value)
		case elf.DT_SONAME:
			d.soname = append(d.soname, value)
		case elf.DT_STRTAB, elf.DT_STRSZ, elf.DT_SYMTAB, elf.DT_VERNEED:
			d.value[tag] = value
		}
	}
	return d
}

const segmentName = "the dynamic segment"

// sectionsOfLoader makes up the sections of an object without section headers: its code, and the
// tables that the loader finds without them. The symbols are missing, because the loader does not
// need to know their number.
func (l *layout) sectionsOfLoader(f *file) error {
	l.headless = true
	l.add(Section{Type: elf.SHT_NULL})
	var code []span
	var dyn program
	for i, p := range l.programs {
		name := fmt.Sprintf("PT_LOAD %d", i)
		switch {
		case p.size == 0:
		case p.kind == elf.PT_DYNAMIC:
			dyn = p
		case p.kind == elf.PT_LOAD:
			if err := l.checkInside(name, p.off, p.size); err != nil {
				return err
			}
			if p.flags&elf.PF_X != 0 {
				code = append(code, span{name: name, off: p.off, end: p.off + p.size})
				l.add(Section{
					Name: name, Type: elf.SHT_PROGBITS, Flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR,
					Addr: p.addr, Offset: p.off, Size: p.size,
				})
			}
		}
	}
	if err := checkOverlap(code); err != nil || dyn.size == 0 {
		return err
	}
	return l.addDynamic(f, dyn)
}

func (l *layout) add(s Section) {
	s.index = len(l.sections)
	l.sections = append(l.sections, s)
}

func (l *layout) addDynamic(f *file, dyn program) error {
	t, err := l.fetch(f, segmentName, dyn.off, dyn.size)
	if err != nil {
		return err
	}
	l.tables = append(l.tables, t)
	d := parseDynamic(t.data)
	at, room, ok := l.loaded(d.value[elf.DT_STRTAB])
	size := d.value[elf.DT_STRSZ]
	if !ok || size > room {
		return formatError(segmentName, dyn.off, "its %d bytes of strings at address 0x%x are not in the file",
			size, d.value[elf.DT_STRTAB])
	}
	l.add(Section{Name: ".dynstr", Type: elf.SHT_STRTAB, Offset: at, Size: size})
	table := uint32(len(l.sections) - 1)
	l.add(Section{Name: ".dynamic", Type: elf.SHT_DYNAMIC, Offset: dyn.off, Size: dyn.size, link: table, entry: dynamicSize})
	versions, ok := d.value[elf.DT_VERNEED]
	if !ok {
		return nil
	}
	if at, room, ok = l.loaded(versions); !ok {
		return formatError(segmentName, dyn.off, "its versions at address 0x%x are not in the file", versions)
	}
	// The version records mark their end themselves.
	l.add(Section{Name: ".gnu.version_r", Type: elf.SHT_GNU_VERNEED, Offset: at, Size: min(room, window), link: table})
	return nil
}

// loaded returns the offset in the file of the byte at addr, and the number of bytes that are
// loaded with it from there on.
func (l *layout) loaded(addr uint64) (off, room uint64, ok bool) {
	for _, p := range l.programs {
		if p.kind == elf.PT_LOAD && addr >= p.addr && addr-p.addr < p.size {
			return p.off + (addr - p.addr), p.size - (addr - p.addr), true
		}
	}
	return 0, 0, false
}
