package fatbin

// The ELF sections that hold fat binaries. cuobjdump finds them by name, and so does this
// package; the wrapper in .nvFatBinSegment only points at them.
const (
	// Executable holds linked code. Without relocatable device code it is the
	// only one.
	Executable = ".nv_fatbin"
	// Relocatable holds code compiled with -rdc=true. Linking keeps it and adds Executable, but then
	// only Relocatable holds the PTX. cuobjdump lists it when there is no Executable, or with
	// --all-fatbin.
	Relocatable = "__nv_relfatbin"
)

// Payload is what an entry of a fat binary holds.
type Payload uint8

// The kinds that cuobjdump knows.
const (
	Unknown      Payload = iota
	SASS                 // machine code, an ELF cubin; cuobjdump --list-elf lists it
	PTX                  // assembly for the driver to compile; --list-ptx lists it
	LTOIR                // NVVM IR for linking (code=lto_XX)
	TileIR               // CUDA Tile IR
	OldCubin             // machine code of before CUDA 3, which no driver loads today
	Index                // an index of a library, for no GPU
	Concatenated         // several entries compressed as one; each is visited after it
)

// kindOf returns the kind of a number in an entry. PTX and SASS have two numbers each: cuobjdump
// lists Mercury code (0x10) as SASS and relocatable PTX (0x40) as PTX.
func kindOf(number uint16) Payload {
	switch number {
	case 0x01, 0x40:
		return PTX
	case 0x02, 0x10:
		return SASS
	case 0x04:
		return OldCubin
	case 0x08:
		return LTOIR
	case 0x20:
		return Index
	case 0x80:
		return TileIR
	case 0x100:
		return Concatenated
	}
	return Unknown
}

// The flags of an entry that this package reads.
const (
	flagArch   = 1 << 20 // only for this GPU: suffix a
	flagFamily = 1 << 21 // for this GPU's family: suffix f
)

// Entry is one piece of device code.
type Entry struct {
	Kind Payload
	// Arch is the GPU it is for, as NVIDIA writes compute capabilities:
	// "7.5", "9.0a", and but for SASS "10.0f". Every SASS and PTX entry has one;
	// it is empty where the kind has none.
	Arch string
}
