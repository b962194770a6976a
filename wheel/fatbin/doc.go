// Package fatbin reads CUDA fat binaries: it lists the device code that a shared object
// carries, and its GPUs. It reads headers only and skips over the code, so a section of any
// size streams through a small buffer and nothing is ever decompressed.
//
// # Layout
//
// Everything is little-endian. A section holds containers one after another,
// each at a multiple of 8, with zeros between. A container is
//
//	0  u32  magic BA55ED50
//	4  u16  version
//	6  u16  size of this header (16)
//	8  u64  size of the entries
//
// and then entries, each a header and its payload:
//
//	 0  u16  kind
//	 2  u16  version
//	 4  u32  size of this header (64, more with a name or options)
//	 8  u64  size of the payload as stored, with its padding
//	16  u32  size of the payload as stored, without, if compressed
//	20  u32  offset of the options, or 0
//	24  u16  minor, u16 major version of the payload's format
//	28  u32  GPU: 90 is compute capability 9.0
//	32  u32  offset, u32 length of the name
//	40  u64  flags
//	48  u64  key, for LTO IR
//	56  u64  size of the payload when decompressed, if compressed
//
// Names and options are texts that end with a NUL, padded to a multiple of 8;
// options begin with the offset and the length of theirs. All offsets are
// relative to the start of the entry.
//
// A concatenated entry (CUDA 13.5's fatbinary --concat) compresses several payloads as one. In
// place of the options it has the number of members and the size of their list (both u32, the
// size counting these two). Then follows for each member a header like an entry's, and its
// name and options. In place of the size of its header, a member has the offset of its payload
// in the decompressed whole.
//
// # Sources
//
// The container's header, the first kinds and the section names are in NVIDIA's fatbinary.h
// (of older toolkits) and fatbinary_section.h. The rest was found by a comparison, byte by
// byte: of the output of nvcc, fatbinary and the nvFatbin library of CUDA 11.2 to 13.5 with
// the report of cuobjdump of CUDA 11.2 to 13.5 about it, also after single fields had been
// changed. Neither cuobjdump nor this package looks at the versions in the two headers:
// fatbinary.h promises that new versions keep the known layout.
package fatbin
