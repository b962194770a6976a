package wheel

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/dsbuild/dsbuild/wheel/elf"
	"github.com/dsbuild/dsbuild/wheel/fatbin"
	"github.com/dsbuild/dsbuild/wheel/x86"
)

// sections gathers what the code in one ELF file tells. It is as large for a
// million sections as for one.
type sections struct {
	code   x86.Scanner
	device map[string]*archs // by the name of the section
	read   int               // sections with device code
	open   *deviceCode       // the last of them
}

// maxDevice bounds the sections with device code in a file. Linkers make one of
// all; a relocatable object may have one for each function.
const maxDevice = 1 << 12

// archs are those that device code is for.
type archs struct{ sass, ptx map[string]bool }

// sink is an elf.Sink: code and device code are read, the rest is passed over.
func (s *sections) sink(section elf.Section) io.Writer {
	var to []io.Writer
	if section.Name == fatbin.Executable || section.Name == fatbin.Relocatable {
		to = append(to, &deviceCode{all: s, section: section.Name, left: int64(section.Size)})
	}
	if section.Executable() {
		to = append(to, &hostCode{&s.code, section.Addr, false})
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
		s.open.close()
	}
}

func (s *sections) extension(m Member, o *elf.Object) *Extension {
	e := &Extension{
		Path: m.Name, Size: m.Size, Machine: o.Machine,
		Glibc: o.Floor("GLIBC_"), GLIBCXX: o.Floor("GLIBCXX_"), CXXABI: o.Floor("CXXABI_"), Libgcc: o.Floor("GCC_"),
		CXX11ABI: o.CXX11ABI, Needs: append([]string{}, o.Needs...), RPath: append(append([]string{}, o.RPath...), o.RunPath...), Stripped: o.Stripped,
	}
	e.Unread = o.Unread
	if o.NoSections {
		e.Unread = "it has no section headers: device code and string ABI are unknown"
	}
	e.SASS, e.PTX = s.archs()
	e.CPU = CPU{Beyond: []string{}}
	if o.Machine == "x86_64" && o.Unread == "" {
		e.CPU = s.cpu(o.IFuncs || len(o.AsksCPU) > 0)
	}
	return e
}

// archs joins the sections. Where device code was linked, what went into the
// linker is there too: its SASS is no news, but its PTX is what the driver
// compiles and links for a GPU that the linked code does not fit.
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

// cpu says what the executable sections use. told says that the object asks
// the CPU by other means than instructions of its own.
func (s *sections) cpu(told bool) CPU {
	_ = s.code.Close() // never fails
	u := s.code.Usage()
	c := CPU{Max: CPULevel(u.Max().String()), Dispatch: chooses(u, told), Beyond: u.Features()}
	c.Requires = c.Max
	if c.Dispatch {
		c.Requires = CPUv1
		if u.Levels[x86.V2].Count > 0 {
			c.Requires = CPUv2
		}
	}
	return c
}

// chooses reports whether code takes its AVX and AVX-512 parts by what the CPU
// says at run time: it asks the CPU, and the system whether it saves the wide
// registers (or is told by libgcc or the loader), and it has vector code for
// CPUs without AVX too. A compiler that may use AVX for all writes none of that;
// cpuid alone is also asked for the size of caches or for random numbers.
func chooses(u x86.Usage, told bool) bool {
	return u.Max() >= x86.V3 && u.SSE.Count > 0 && (told || u.CPUID && u.XGETBV)
}

// hostCode reads a section of machine code that is written to it.
type hostCode struct {
	scanner *x86.Scanner
	address uint64
	begun   bool
}

func (c *hostCode) Write(p []byte) (int, error) {
	if !c.begun {
		c.scanner.Start(c.address)
		c.begun = true
	}
	return c.scanner.Write(p)
}

// deviceCode reads a section of fat binaries that is written to it.
type deviceCode struct {
	all     *sections
	section string
	left    int64          // bytes to come
	in      *io.PipeWriter // nil before the first byte
	done    chan error
}

func (d *deviceCode) Write(p []byte) (int, error) {
	if d.in == nil {
		if err := d.start(); err != nil {
			return 0, err
		}
	}
	n, err := d.in.Write(p)
	d.left -= int64(n)
	if err == nil && d.left == 0 {
		err = errors.Join(d.in.Close(), <-d.done)
	}
	return n, err
}

func (d *deviceCode) start() error {
	s := d.all
	if s.read++; s.read > maxDevice {
		return fmt.Errorf("more than %d sections with device code", maxDevice)
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
		err := fatbin.Scan(out, size, found.visit)
		if err == nil {
			_, err = io.Copy(io.Discard, out)
		}
		out.CloseWithError(err)
		d.done <- err
	}()
	return nil
}

func (a *archs) visit(e fatbin.Entry) error {
	switch e.Kind {
	case fatbin.SASS:
		a.sass[e.Arch] = true
	case fatbin.PTX:
		a.ptx[e.Arch] = true
	}
	return nil
}

// close ends a reading that was broken off.
func (d *deviceCode) close() {
	_ = d.in.CloseWithError(io.ErrUnexpectedEOF) // never fails
	if d.left > 0 {
		<-d.done
	}
}
