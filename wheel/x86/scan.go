package x86

import "slices"

// Scanner reads machine code in the order of its addresses, in one linear sweep:
// each instruction begins where the previous one ends, and a byte that begins no
// instruction is skipped. Some linkers leave runs of zeros between functions. Two
// or more zeros after an instruction are skipped: as code they would add a
// register to the byte it points to.
//
// Compilers leave no tables in code, so there the sweep meets nothing but
// instructions. It also reads tables in hand-written code as instructions, and is
// synchronized with the code again a few instructions later. The same happens
// after a single zero before a function. objdump differs there only because it
// restarts at each symbol.
//
// The zero Scanner is ready to read a section. It implements io.WriteCloser and never fails.
type Scanner struct {
	found   [256]int64 // instructions by needID; those of invalid are bytes
	rest    []byte     // the beginning of an unfinished instruction
	padding bool       // the byte before was a zero passed over
}

// Usage describes the instructions that a Scanner has read.
type Usage struct {
	Levels  [Levels]int64 // the instructions by the level they need
	Beyond  []string      // the features they need beyond any level, sorted: see Need.Feature
	CPUID   bool          // a cpuid instruction is inside: the code can choose at run time
	XGETBV  bool          // xgetbv, too, which reports whether AVX and newer may be used
	SSE     int64         // vector instructions for CPUs without AVX: see Need.SSE
	General int64         // of Levels[V3]: see Need.General
	Invalid int64         // bytes that begin no instruction known here
}

// Max returns the highest level found, or V1 without instructions.
func (u Usage) Max() Level {
	for l := V4; l > V1; l-- {
		if u.Levels[l] > 0 {
			return l
		}
	}
	return V1
}

// Write reads the next bytes of the section. Instructions may straddle writes.
func (s *Scanner) Write(p []byte) (int, error) {
	n := len(p)
	if s.rest == nil {
		s.rest = make([]byte, 0, 2*len(window{}))
	}
	if had := len(s.rest); had > 0 {
		joined := append(s.rest, p[:min(len(p), len(window{}))]...)
		done := s.sweepCode(joined, had)
		if done < had { // p is too short: all of it is in joined
			s.rest = append(s.rest[:0], joined[done:]...)
			return n, nil
		}
		p = p[done-had:]
	}
	done := s.sweepCode(p, len(p))
	s.rest = append(s.rest[:0], p[done:]...)
	return n, nil
}

// Close ends the section; another may follow. If the last instruction is cut off, its first byte is
// invalid, and the sweep continues at the next byte.
func (s *Scanner) Close() error {
	for len(s.rest) > 0 {
		s.found[invalid]++
		done := 1 + s.sweepCode(s.rest[1:], len(s.rest)-1)
		s.rest = append(s.rest[:0], s.rest[done:]...)
	}
	s.padding = false
	return nil
}

// sweepCode reads the instructions that begin in code before limit. It returns where
// it stopped: at limit, after it, or at an instruction that code cuts off.
func (s *Scanner) sweepCode(code []byte, limit int) int {
	t := tables()
	pos := 0
	for pos < limit {
		if code[pos] == 0 && (s.padding || pos+1 < len(code) && code[pos+1] == 0) {
			s.padding = true
			pos++
			continue
		}
		s.padding = false
		n, need := t.decodeAny(code[pos:])
		if n > len(code)-pos {
			return pos
		}
		s.found[need]++
		if need == invalid {
			n = 1
		}
		pos += n
	}
	return pos
}

// Usage returns the instructions read so far. It includes the last bytes of a section only after
// Close.
func (s *Scanner) Usage() Usage {
	u := Usage{Invalid: s.found[invalid]}
	for id, need := range tables().needs {
		found := s.found[id]
		if found == 0 || needID(id) == invalid {
			continue
		}
		u.Levels[need.Level] += found
		u.CPUID = u.CPUID || need.CPUID
		u.XGETBV = u.XGETBV || need.XGETBV
		if need.SSE {
			u.SSE += found
		}
		if need.General {
			u.General += found
		}
		if need.Feature != "" && !slices.Contains(u.Beyond, need.Feature) {
			u.Beyond = append(u.Beyond, need.Feature)
		}
	}
	slices.Sort(u.Beyond)
	return u
}
