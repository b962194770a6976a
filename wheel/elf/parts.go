package elf

import (
	"cmp"
	"debug/elf"
	"io"
	"slices"
	"strings"
)

// parts collects facts for evaluation at the end of the object, because a table may precede or
// follow its strings.
type parts struct {
	*layout
	// The sections that the loader reads, or nil.
	dynamic, symbols, versions, strings *Section

	text map[*Section]*strings.Builder // the bytes of those that are kept
	// The facts from the symbols and relocations.
	defined, undefined []uint32 // names
	ifuncs             bool
	unique             bool // a symbol with that binding is defined

	handed int // cost of the names handed out so far, see maxNames
}

// newParts finds the parts. The first seen bytes of the file are known to exist, so memory may be
// allocated for parts within them.
func newParts(l *layout, seen uint64) (*parts, error) {
	p := &parts{layout: l, text: map[*Section]*strings.Builder{}}
	for i := range l.sections {
		if err := p.find(&l.sections[i]); err != nil {
			return nil, err
		}
	}
	for _, s := range []*Section{p.dynamic, p.symbols, p.versions} {
		if s == nil {
			continue
		}
		if err := p.findStrings(s); err != nil {
			return nil, err
		}
	}
	for _, s := range []*Section{p.dynamic, p.versions, p.strings} {
		if s == nil {
			continue
		}
		if err := l.keep(s.label(), s.Offset, s.Size); err != nil {
			return nil, err
		}
		p.text[s] = &strings.Builder{}
		if s.end() <= seen {
			p.text[s].Grow(int(s.Size))
		}
	}
	if s := p.symbols; s != nil {
		return p, l.keep(s.label(), s.Offset, s.Size/symbolSize*8) // a name, and the slice growing
	}
	return p, nil
}

// find records s if the loader reads it.
func (p *parts) find(s *Section) error {
	var slot **Section
	var entry uint64
	switch {
	case !s.stored():
		return nil
	case s.Type == elf.SHT_DYNAMIC:
		slot, entry = &p.dynamic, dynamicSize
	case s.Type == elf.SHT_DYNSYM:
		slot, entry = &p.symbols, symbolSize
	case s.Type == elf.SHT_GNU_VERNEED:
		slot = &p.versions // its records are linked
	case s.Type == elf.SHT_RELA:
		entry = relaSize
	}
	if entry != 0 && (s.entry != entry || s.Size%entry != 0) {
		return formatError(s.label(), s.Offset, "%d bytes in entries of %d, not of %d", s.Size, s.entry, entry)
	}
	if slot == nil {
		return nil
	}
	switch {
	case *slot != nil:
		return formatError(s.label(), s.Offset, "a second %v in addition to %s", s.Type, (*slot).label())
	case slot != &p.symbols && s.Size > maxLists:
		return formatError(s.label(), s.Offset, "%d bytes, more than %d", s.Size, maxLists)
	}
	*slot = s
	return nil
}

// findStrings records the string table that s uses. The loader has only one.
func (p *parts) findStrings(s *Section) error {
	if uint64(s.link) >= uint64(len(p.sections)) {
		return formatError(s.label(), s.Offset, "its strings are in section %d of %d", s.link, len(p.sections))
	}
	t := &p.sections[s.link]
	switch {
	case t.Type != elf.SHT_STRTAB || !t.stored():
		return formatError(s.label(), s.Offset, "its strings are in %s, which holds none", t.label())
	case p.strings != nil && p.strings != t:
		return formatError(s.label(), s.Offset, "its strings are in %s, but those of other sections are in %s", t.label(), p.strings.label())
	}
	p.strings = t
	return nil
}

// spans lists the writers for the second reading, each with its range of bytes.
func (p *parts) spans(sink Sink) []span {
	var spans []span
	add := func(name string, off, n uint64, w io.Writer) {
		if n > 0 {
			spans = append(spans, span{name, off, off + n, w})
		}
	}
	for _, t := range append(slices.Clone(p.tables), p.names) {
		add(t.name, t.off, uint64(len(t.data)), &same{table: t})
	}
	var inOrder []*Section // those that have bytes, as they follow in the file
	for i := range p.sections {
		if s := &p.sections[i]; s.stored() {
			inOrder = append(inOrder, s)
		}
	}
	slices.SortStableFunc(inOrder, func(a, b *Section) int { return cmp.Compare(a.Offset, b.Offset) })
	for _, s := range inOrder {
		if w, ok := p.text[s]; ok {
			add(s.label(), s.Offset, s.Size, w)
		}
		switch {
		case s == p.symbols:
			add(s.label(), s.Offset, s.Size, &records{size: symbolSize, each: p.symbol})
		case s.Type == elf.SHT_RELA && s.Flags&elf.SHF_ALLOC != 0:
			add(s.label(), s.Offset, s.Size, &records{size: relaSize, each: p.relocation})
		}
		if sink == nil {
			continue
		}
		if w := sink(*s); w != nil {
			add(s.label(), s.Offset, s.Size, w)
		}
	}
	return spans
}
