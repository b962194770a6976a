// Package fatbin reads CUDA fat binaries: which code, for which GPUs, a shared
// object carries for the device. It reads headers only and skips over the
// code, so a section of any size streams through a small buffer and nothing
// is ever decompressed.
//
// # Layout
//
// Everything is little-endian. A section holds containers one after another,
// each at a multiple of 8, with zeros between. A container is
//
//	0  u32  magic BA55ED50
//	4  u16  version
//	6  u16  size of this header (16)
//	8  u64  size of what follows
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
// options begin with the offset and the length of theirs. All offsets count
// from the entry's begin.
//
// A concatenated entry (CUDA 13.5's fatbinary --concat) compresses several
// payloads as one. Where others have options it has the number of members and
// the size of their list (both u32, the size counting these two), then a
// header like that of an entry for each, with name and options behind it;
// where an entry has the size of its header a member has the offset of its
// payload in the decompressed whole.
//
// # Sources
//
// The container's header, the first kinds and the section names are in
// NVIDIA's fatbinary.h (of older toolkits) and fatbinary_section.h. The rest
// was found by comparing, byte by byte, what nvcc, fatbinary and the nvFatbin
// library of CUDA 11.2 to 13.5 write with what cuobjdump of CUDA 11.2 to 13.5
// says about it, also after single fields had been changed. The versions in
// both headers are not looked at, neither by cuobjdump nor here: by
// fatbinary.h they are not to change what is known of the layout.
package fatbin
