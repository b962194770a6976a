package elf

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"strings"
)

// Sizes of the structures of 64-bit objects, in bytes (gABI, chapters 4 and
// 5; versions: Linux Standard Base, Core, 10.7).
const (
	headerSize  = 64
	sectionSize = 64
	programSize = 56
	symbolSize  = 24
	relaSize    = 24
	dynamicSize = 16
	versionSize = 16 // Elf64_Verneed and Elf64_Vernaux
)

var le = binary.LittleEndian

// machine is a processor that Linux runs on in 64-bit little-endian mode.
type machine struct {
	name string
	// irelative is the relocation whose value a function finds when the object
	// is loaded, R_…_IRELATIVE of the processor's ELF supplement.
	irelative uint32
}

var machines = map[elf.Machine]machine{
	elf.EM_X86_64:    {"x86_64", uint32(elf.R_X86_64_IRELATIVE)},
	elf.EM_AARCH64:   {"aarch64", uint32(elf.R_AARCH64_IRELATIVE)},
	elf.EM_PPC64:     {"ppc64le", uint32(elf.R_PPC64_IRELATIVE)},
	elf.EM_RISCV:     {"riscv64", 58},
	elf.EM_LOONGARCH: {"loongarch64", uint32(elf.R_LARCH_IRELATIVE)},
}

// otherMachines are the names of processors whose objects are not read any further.
var otherMachines = map[elf.Machine]string{
	elf.EM_X86_64: "x86_64", // the x32 ABI
	elf.EM_386:    "i686",
	elf.EM_ARM:    "armv7l",
	elf.EM_S390:   "s390x",
}

// header is the ELF header.
type header struct {
	machine machine
	unread  string // why nothing below is known

	// The program headers and the section headers: where, how large, how many.
	programsAt            uint64
	sectionsAt            uint64
	programEnt, nPrograms uint16
	sectionEnt, nSections uint16
	namesIn               uint16 // index of the section that has the names of all
}

const headerName = "the ELF header"

func parseHeader(raw []byte) (header, error) {
	switch {
	case !IsELF(raw):
		return header{}, formatError(headerName, 0, "does not begin with %q", elf.ELFMAG)
	case len(raw) < elf.EI_NIDENT+4:
		return header{}, formatError(headerName, 0, "the file ends after %d bytes", len(raw))
	}
	var h header
	switch class := elf.Class(raw[elf.EI_CLASS]); class {
	case elf.ELFCLASS32:
		h.unread = "a 32-bit object"
	case elf.ELFCLASS64:
	default:
		return header{}, formatError(headerName, elf.EI_CLASS, "class %d is neither 32-bit nor 64-bit", class)
	}
	var order binary.ByteOrder = le
	switch data := elf.Data(raw[elf.EI_DATA]); data {
	case elf.ELFDATA2LSB:
	case elf.ELFDATA2MSB:
		order, h.unread = binary.BigEndian, "a big-endian object"
	default:
		return header{}, formatError(headerName, elf.EI_DATA, "byte order %d is neither little-endian nor big-endian", data)
	}
	m := elf.Machine(order.Uint16(raw[elf.EI_NIDENT+2:]))
	known, ok := machines[m]
	switch {
	case h.unread != "":
		h.machine.name = otherName(m)
		return h, nil
	case !ok:
		h.machine.name = otherName(m)
		h.unread = "an object for " + h.machine.name
		return h, nil
	}
	h.machine = known
	if len(raw) < headerSize {
		return h, formatError(headerName, 0, "the file ends after %d bytes", len(raw))
	}
	if v := raw[elf.EI_VERSION]; v != byte(elf.EV_CURRENT) {
		return h, formatError(headerName, elf.EI_VERSION, "version %d of ELF, 1 is known", v)
	}
	h.programsAt, h.sectionsAt = le.Uint64(raw[32:]), le.Uint64(raw[40:])
	h.programEnt, h.nPrograms = le.Uint16(raw[54:]), le.Uint16(raw[56:])
	h.sectionEnt, h.nSections = le.Uint16(raw[58:]), le.Uint16(raw[60:])
	h.namesIn = le.Uint16(raw[62:])
	if h.sectionsAt == 0 {
		h.unread = "it has no section headers"
	}
	return h, nil
}

func otherName(m elf.Machine) string {
	if name, ok := otherMachines[m]; ok {
		return name
	}
	// Package elf names an unknown machine after the nearest known one below: "EM_ALPHA+2".
	if name, ok := strings.CutPrefix(m.String(), "EM_"); ok && !strings.Contains(name, "+") {
		return strings.ToLower(name)
	}
	return fmt.Sprintf("machine %d", uint16(m))
}

// parseSection reads a section header; its name is the offset of the name.
func parseSection(index int, raw []byte) (s Section, name uint32) {
	return Section{
		Type:   elf.SectionType(le.Uint32(raw[4:])),
		Flags:  elf.SectionFlag(le.Uint64(raw[8:])),
		Addr:   le.Uint64(raw[16:]),
		Offset: le.Uint64(raw[24:]),
		Size:   le.Uint64(raw[32:]),
		index:  index,
		link:   le.Uint32(raw[40:]),
		info:   le.Uint32(raw[44:]),
		entry:  le.Uint64(raw[56:]),
	}, le.Uint32(raw)
}

// program is a program header: a part of the file as the loader sees it.
type program struct {
	kind            elf.ProgType
	off, addr, size uint64 // the size is that in the file
	align           uint64
}
