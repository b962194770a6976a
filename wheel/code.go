package wheel

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"

	"github.com/dsbuild/dsbuild/wheel/elf"
	"github.com/dsbuild/dsbuild/wheel/fatbin"
	"github.com/dsbuild/dsbuild/wheel/x86"
)

// sections gathers the facts about the code in one ELF file. Its size does not grow with the
// number of sections.
type sections struct {
	code   x86.Scanner
	arm    armFeatures
	device map[string]*archs // by section name
	read   int               // sections with device code
	open   *deviceCode       // the last of them
}

// maxDevice bounds the sections with device code in a file. Linkers merge all into one; a
// relocatable object may have one for each function.
const maxDevice = 1 << 12

// archs are the architectures that device code was compiled for.
type archs struct{ sass, ptx map[string]bool }

// sinkFor is an elf.Sink: it selects sections with code and device code, and skips the rest.
func (s *sections) sinkFor(section elf.Section) io.Writer {
	var to []io.Writer
	if section.Name == fatbin.Executable || section.Name == fatbin.Relocatable {
		to = append(to, &deviceCode{all: s, section: section.Name, left: int64(section.Size)})
	}
	if section.Executable() && section.Machine == Arm {
		if s.arm == nil {
			s.arm = armFeatures{}
		}
		to = append(to, &armCode{found: s.arm})
	} else if section.Executable() {
		to = append(to, &hostCode{scanner: &s.code})
	}
	switch len(to) {
	case 0:
		return nil
	case 1:
		return to[0]
	}
	return io.MultiWriter(to...)
}

func (s *sections) close() {
	if s.open != nil {
		// Abort an incomplete read.
		_ = s.open.in.CloseWithError(io.ErrUnexpectedEOF) // never fails
		if s.open.left > 0 {
			<-s.open.done
		}
	}
}

func (s *sections) extension(m Member, o *elf.Object) *Extension {
	e := &Extension{
		Path: m.Name, Size: m.Size, Machine: o.Machine,
		Floors:   Floors{o.Floor("GLIBC_"), o.Floor("GLIBCXX_"), o.Floor("CXXABI_"), o.Floor("GCC_")},
		CXX11ABI: o.CXX11ABI, Torch: o.Torch, Unique: o.Unique, Stripped: o.Stripped,
		Needs: append([]string{}, o.Needs...), RPath: append(append([]string{}, o.RPath...), o.RunPath...),
	}
	e.Unread, e.align = o.Unread, o.Align
	e.SASS, e.PTX = s.archs()
	e.CPU = CPU{Beyond: []string{}}
	switch {
	case o.Unread != "":
	case o.Machine == Arm:
		e.CPU = CPU{Max: CPUArm, Requires: CPUArm, Beyond: s.arm.needed()}
	case o.Machine == X86:
		_ = s.code.Close() // never fails
		e.usage, e.told = s.code.Usage(), o.IFuncs || len(o.AsksCPU) > 0
		e.CPU = cpuOf(e.usage, e.told)
	}
	return e
}

// cpuOf describes the instruction set of code. If told is set, the code queries the CPU in other ways than
// cpuid.
func cpuOf(u x86.Usage, told bool) CPU {
	c := CPU{Max: CPULevel(u.Max().String()), Dispatch: chooses(u, told), Beyond: append([]string{}, u.Beyond...)}
	c.Requires = c.Max
	if c.Dispatch {
		c.Requires = baseLevel(u)
	}
	return c
}

// askLibraries finds the extensions that query the CPU through another library of the wheel: libavcodec uses libavutil.
func askLibraries(all []Extension) {
	asks := map[string]bool{} // by the file's name
	for _, e := range all {
		asks[path.Base(e.Path)] = e.told || e.usage.CPUID && e.usage.XGETBV
	}
	for changed := true; changed; {
		changed = false
		for i, e := range all {
			if !e.told && e.Machine == X86 && e.Unread == "" && slices.ContainsFunc(e.Needs, func(name string) bool { return asks[name] }) {
				all[i].told, all[i].CPU = true, cpuOf(e.usage, true)
				asks[path.Base(e.Path)], changed = true, true
			}
		}
	}
}

// archs joins the sections. A linked object also holds the linker's input. The SASS of that input
// is already in the linked code. Its PTX counts: the driver compiles and links it for a GPU that
// the linked code does not fit.
func (s *sections) archs() (sass, ptx []string) {
	_, linked := s.device[fatbin.Executable]
	for section, found := range s.device {
		if !linked || section == fatbin.Executable {
			sass = slices.AppendSeq(sass, maps.Keys(found.sass))
		}
		ptx = slices.AppendSeq(ptx, maps.Keys(found.ptx))
	}
	return sortedArchs(sass), sortedArchs(ptx)
}

// rareSSE is a ratio of AVX instructions to vector instructions for CPUs without AVX. Above it, the
// compiler may use AVX everywhere, and the other instructions come from linked libraries: polars has
// about 200, but numpy and OpenBLAS, which select at run time, have less than 3.
const rareSSE = 20

// commonSSE is the same ratio for code that was mostly compiled for any CPU: 2 in numkong and 1 in simsimd, which
// query the CPU only by cpuid.
const commonSSE = 4

// rareGeneral is the ratio of other instructions to BMI2 and similar instructions in code that
// selects the latter at run time.
const rareGeneral = 100

// baseLevel returns the level that code needs, except for parts that it selects at run time.
func baseLevel(u x86.Usage) CPULevel {
	switch {
	case u.Levels[x86.V3]-u.General > rareSSE*u.SSE:
		return CPUv3
	case u.Levels[x86.V2] > 0:
		return CPUv2
	}
	return CPUv1
}

// chooses reports whether code selects its AVX and AVX-512 parts at run time. Such code reads the CPU's features,
// checks whether the system saves the wide registers (or gets both from libgcc or the loader), and also has vector
// code for CPUs without AVX. A compiler that may use AVX everywhere generates none of that, but the code may still
// select AVX-512. cpuid alone proves nothing, because code also uses it for cache sizes and random numbers. It is
// sufficient if much code is for any CPU, and for rare BMI2 and similar instructions: about 4 in 1,000 in NVIDIA's
// cuobjdump, which selects them, but several in 100 where the compiler may use them everywhere.
func chooses(u x86.Usage, told bool) bool {
	if u.Max() == x86.V3 && u.Levels[x86.V3] == u.General {
		return (told || u.CPUID) && u.General*rareGeneral < u.Levels[x86.V1]
	}
	common := u.SSE > 0 && u.Levels[x86.V3]-u.General+u.Levels[x86.V4] <= commonSSE*u.SSE
	return u.Max() >= x86.V3 && (u.SSE > 0 || u.Max() == x86.V4 && u.Levels[x86.V3] > 0) &&
		(told || u.CPUID && (u.XGETBV || common))
}

// hostCode is a Writer that decodes a section of machine code.
type hostCode struct {
	scanner *x86.Scanner
	begun   bool
}

func (c *hostCode) Write(p []byte) (int, error) {
	if !c.begun {
		_ = c.scanner.Close() // of the previous section; never fails
		c.begun = true
	}
	return c.scanner.Write(p)
}

// deviceCode is a Writer that reads a section of fat binaries.
type deviceCode struct {
	all     *sections
	section string
	left    int64          // bytes to come
	in      *io.PipeWriter // nil before the first byte
	done    chan error
}

func (d *deviceCode) Write(p []byte) (int, error) {
	if d.in == nil {
		s := d.all
		if s.read++; s.read > maxDevice {
			return 0, fmt.Errorf("more than %d sections with device code", maxDevice)
		}
		s.open = d
		if s.device == nil {
			s.device = map[string]*archs{}
		}
		found := s.device[d.section]
		if found == nil {
			found = &archs{map[string]bool{}, map[string]bool{}}
			s.device[d.section] = found
		}
		out, in := io.Pipe()
		d.in, d.done = in, make(chan error, 1)
		size := d.left
		go func() {
			err := fatbin.Scan(out, size, found.addArch)
			if err == nil {
				_, err = io.Copy(io.Discard, out)
			}
			_ = out.CloseWithError(err) // never fails
			d.done <- err
		}()
	}
	n, err := d.in.Write(p)
	d.left -= int64(n)
	if err == nil && d.left == 0 {
		err = errors.Join(d.in.Close(), <-d.done)
	}
	return n, err
}

func (a *archs) addArch(e fatbin.Entry) error {
	switch e.Kind {
	case fatbin.SASS:
		a.sass[e.Arch] = true
	case fatbin.PTX:
		a.ptx[e.Arch] = true
	}
	return nil
}
