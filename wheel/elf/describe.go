package elf

import (
	"debug/elf"
	"slices"
	"strings"
)

// describe fills in o from the parts, once all have been read.
func (p *parts) describe(o *Object) error {
	o.Needs, o.RPath, o.RunPath = []string{}, []string{}, []string{}
	o.AsksCPU, o.Torch.C = []string{}, []string{}
	o.Versions = map[string][]string{}
	o.Stripped = !slices.ContainsFunc(p.sections, func(s Section) bool {
		if !s.stored() || s.Flags&elf.SHF_ALLOC != 0 {
			return false // .debug_gdb_scripts is loaded, and no debug information
		}
		return s.Type == elf.SHT_SYMTAB || strings.HasPrefix(s.Name, ".debug_") || strings.HasPrefix(s.Name, ".zdebug_")
	})
	for _, segment := range p.programs {
		if segment.kind == elf.PT_LOAD && (o.Align == 0 || segment.align < o.Align) {
			o.Align = segment.align
		}
	}
	if s := p.strings; s != nil && !strings.HasSuffix(p.text[s].String(), "\x00") {
		return formatError(s.label(), s.end()-1, "does not end with a zero byte")
	}
	var d dynamic
	if p.dynamic != nil {
		d = parseDynamic([]byte(p.text[p.dynamic].String()))
	}
	if err := p.agree(d); err != nil {
		return err
	}
	for _, offs := range []struct {
		list []uint64
		use  func(string)
	}{
		{d.needs, func(s string) { o.Needs = append(o.Needs, s) }},
		{d.rpath, func(s string) { o.RPath = append(o.RPath, strings.Split(s, ":")...) }},
		{d.runpath, func(s string) { o.RunPath = append(o.RunPath, strings.Split(s, ":")...) }},
	} {
		for _, off := range offs.list {
			name, err := p.name(p.dynamic, off)
			if err != nil {
				return err
			}
			offs.use(name)
		}
	}

	if err := p.describeVersions(o); err != nil {
		return err
	}
	return p.describeSymbols(o)
}

// name returns the string at off of the table that s uses.
func (p *parts) name(s *Section, off uint64) (string, error) {
	name, err := text(p.text[p.strings].String(), off)
	if err != nil {
		return "", formatError(s.label(), s.Offset, "%v", err)
	}
	if p.handed += len(name) + 64; p.handed > maxNames {
		return "", formatError(s.label(), s.Offset, "its names take more than %d bytes of memory", maxNames)
	}
	return strings.Clone(name), nil
}

// agree rejects an object whose sections contradict the table that the loader will read: the
// loader uses the program headers and ignores the sections.
func (p *parts) agree(d dynamic) error {
	if p.dynamic != nil && !slices.ContainsFunc(p.programs, isDynamic) {
		return formatError(p.dynamic.label(), p.dynamic.Offset, "is no segment, so the loader does not see it")
	}
	for _, seg := range p.programs {
		if !isDynamic(seg) {
			continue
		}
		if p.dynamic == nil {
			return formatError("the dynamic segment", seg.off, "is no section")
		}
		if s := p.dynamic; seg.off != s.Offset || seg.size != s.Size || seg.addr != s.Addr {
			return formatError("the dynamic segment", seg.off, "is not %s at 0x%x", s.label(), s.Offset)
		}
	}
	for _, c := range []struct {
		tag     elf.DynTag
		section *Section
	}{
		{elf.DT_STRTAB, p.strings},
		{elf.DT_SYMTAB, p.symbols},
		{elf.DT_VERNEED, p.versions},
	} {
		addr, ok := d.value[c.tag]
		switch {
		case !ok:
		case c.section == nil:
			return formatError(p.dynamic.label(), p.dynamic.Offset, "%v is at address 0x%x, where no section is", c.tag, addr)
		case c.section.Addr != addr:
			return formatError(p.dynamic.label(), p.dynamic.Offset, "%v is at address 0x%x, %s at 0x%x",
				c.tag, addr, c.section.label(), c.section.Addr)
		}
	}
	return nil
}

func isDynamic(p program) bool { return p.kind == elf.PT_DYNAMIC && p.size > 0 }

// dynamic is the table that lists an object's needs for the loader.
type dynamic struct {
	needs, rpath, runpath []uint64 // offsets of strings
	// value holds the other entries that are used here: DT_STRTAB, DT_SYMTAB, DT_VERNEED.
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
		case elf.DT_STRTAB, elf.DT_SYMTAB, elf.DT_VERNEED:
			d.value[tag] = value
		}
	}
	return d
}
