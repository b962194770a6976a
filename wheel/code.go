package wheel

import (
	"errors"
	"io"
	"maps"
	"slices"

	"github.com/dsbuild/dsbuild/wheel/elf"
	"github.com/dsbuild/dsbuild/wheel/fatbin"
	"github.com/dsbuild/dsbuild/wheel/x86"
)

// sections gathers what the code in one ELF file tells.
type sections struct {
	code   []*x86.Scanner
	device []*deviceCode
}

// sink is an elf.Sink: code and device code are read, the rest is passed over.
func (s *sections) sink(section elf.Section) io.Writer {
	switch {
	case section.Name == fatbin.Executable || section.Name == fatbin.Relocatable:
		d := &deviceCode{section: section.Name, size: int64(section.Size), sass: map[string]bool{}, ptx: map[string]bool{}}
		s.device = append(s.device, d)
		return d
	case section.Executable():
		scanner := &x86.Scanner{}
		scanner.Start(section.Addr)
		s.code = append(s.code, scanner)
		return scanner
	}
	return nil
}

func (s *sections) close() {
	for _, d := range s.device {
		d.close()
	}
}

func (s *sections) extension(m Member, o *elf.Object) *Extension {
	e := &Extension{
		Path: m.Name, Size: m.Size, Machine: o.Machine,
		Glibc: o.Floor("GLIBC_"), GLIBCXX: o.Floor("GLIBCXX_"), CXXABI: o.Floor("CXXABI_"), Libgcc: o.Floor("GCC_"),
		CXX11ABI: o.CXX11ABI, Needs: append([]string{}, o.Needs...), RPath: slices.Concat([]string{}, o.RPath, o.RunPath), Stripped: o.Stripped,
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
	linked := slices.ContainsFunc(s.device, func(d *deviceCode) bool { return d.section == fatbin.Executable })
	for _, d := range s.device {
		if !linked || d.section == fatbin.Executable {
			sass = slices.AppendSeq(sass, maps.Keys(d.sass))
		}
		ptx = slices.AppendSeq(ptx, maps.Keys(d.ptx))
	}
	return sortedArchs(sass), sortedArchs(ptx)
}

// cpu joins what the executable sections use. told says that the object asks
// the CPU by other means than instructions of its own.
func (s *sections) cpu(told bool) CPU {
	var all x86.Usage
	beyond := []string{}
	for _, code := range s.code {
		_ = code.Close() // never fails
		u := code.Usage()
		for level, found := range u.Levels {
			all.Levels[level].Count += found.Count
		}
		all.SSE.Count += u.SSE.Count
		all.CPUID, all.XGETBV = all.CPUID || u.CPUID, all.XGETBV || u.XGETBV
		beyond = append(beyond, u.Features()...)
	}
	slices.Sort(beyond)
	c := CPU{Max: CPULevel(all.Max().String()), Dispatch: chooses(all, told), Beyond: slices.Compact(beyond)}
	c.Requires = c.Max
	if c.Dispatch {
		c.Requires = CPUv1
		if all.Levels[x86.V2].Count > 0 {
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

// deviceCode reads a section of fat binaries that is written to it.
type deviceCode struct {
	section   string
	size      int64           // bytes to come
	sass, ptx map[string]bool // archs
	in        *io.PipeWriter  // nil before the first byte
	done      chan error
}

func (d *deviceCode) Write(p []byte) (int, error) {
	if d.in == nil {
		d.start()
	}
	n, err := d.in.Write(p)
	d.size -= int64(n)
	if err == nil && d.size == 0 {
		err = errors.Join(d.in.Close(), <-d.done)
	}
	return n, err
}

func (d *deviceCode) start() {
	out, in := io.Pipe()
	d.in, d.done = in, make(chan error, 1)
	size := d.size
	go func() {
		err := fatbin.Scan(out, size, d.visit)
		if err == nil {
			_, err = io.Copy(io.Discard, out)
		}
		out.CloseWithError(err)
		d.done <- err
	}()
}

func (d *deviceCode) visit(e fatbin.Entry) error {
	switch e.Kind {
	case fatbin.SASS:
		d.sass[e.Arch] = true
	case fatbin.PTX:
		d.ptx[e.Arch] = true
	}
	return nil
}

// close ends a reading that was broken off.
func (d *deviceCode) close() {
	if d.in != nil {
		_ = d.in.CloseWithError(io.ErrUnexpectedEOF) // never fails
	}
}
