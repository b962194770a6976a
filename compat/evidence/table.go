package evidence

import (
	"slices"
	"strings"

	"deps.dev/util/semver"
)

// ByMachine is a digest for each machine. Its text form is "X86 ARM", or one digest if they are equal; "-" stands for
// none.
type ByMachine map[string]string

// MarshalText implements encoding.TextMarshaler.
func (d ByMachine) MarshalText() ([]byte, error) {
	var words []string
	for _, machine := range Machines() {
		word := d[machine]
		if word == "" {
			word = "-"
		}
		words = append(words, word)
	}
	return []byte(strings.Join(slices.Compact(words), " ")), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *ByMachine) UnmarshalText(text []byte) error {
	words := strings.Fields(string(text))
	*d = ByMachine{}
	for i, machine := range Machines() {
		if len(words) > 0 && words[min(i, len(words)-1)] != "-" {
			(*d)[machine] = words[min(i, len(words)-1)]
		}
	}
	return nil
}

// Proof is an op as a release has it, which was proven.
type Proof struct {
	DeepSpeed string    `json:"deepspeed"` // release
	Op        ByMachine `json:"op"`        // the digest of all its pieces
}

// Table holds the proofs of ops for torch's stable ABI.
type Table struct {
	Port  string               `json:"port"`  // digest of dsbuild's port of torch's headers
	Ops   map[string][]Proof   `json:"ops"`   // newest first
	Files map[string]ByMachine `json:"files"` // the pieces of the newest proof, to name what has changed
}

// Changes lists, for each machine, the ops that differ from every proof, each with the first differing file or the reason.
type Changes map[string]map[string]string

// Judge compares sources with the proofs.
func (t *Table) Judge(s *Sources) Changes {
	out := Changes{}
	for _, machine := range Machines() {
		out[machine] = map[string]string{}
		for op, proofs := range t.Ops {
			pieces, err := s.Op(op, machine)
			if err != nil {
				out[machine][op] = err.Error()
				continue
			}
			sum := Sum(pieces)
			if slices.ContainsFunc(proofs, func(p Proof) bool { return p.Op[machine] == sum }) {
				continue
			}
			out[machine][op] = "its files" // each of which is in the table, but not all together
			for _, p := range pieces {
				if t.Files[p.Name][machine] != p.Digest {
					out[machine][op] = p.Name
					break
				}
			}
		}
	}
	return out
}

// Accept adds a proof of an op, as a release has it, for some machines.
func (t *Table) Accept(s *Sources, op, release string, machines ...string) error {
	proof := Proof{DeepSpeed: release, Op: ByMachine{}}
	if i := slices.IndexFunc(t.Ops[op], func(p Proof) bool { return p.DeepSpeed == release }); i >= 0 {
		proof = t.Ops[op][i]
		t.Ops[op] = slices.Delete(t.Ops[op], i, i+1)
	}
	newest := len(t.Ops[op]) == 0 || semver.PyPI.Compare(release, t.Ops[op][0].DeepSpeed) > 0
	for _, machine := range machines {
		pieces, err := s.Op(op, machine)
		if err != nil {
			return err
		}
		proof.Op[machine] = Sum(pieces)
		for _, p := range pieces {
			if !newest {
				break
			}
			if t.Files[p.Name] == nil {
				t.Files[p.Name] = ByMachine{}
			}
			t.Files[p.Name][machine] = p.Digest
		}
	}
	t.Ops[op] = append(t.Ops[op], proof)
	slices.SortFunc(t.Ops[op], func(a, b Proof) int { return semver.PyPI.Compare(b.DeepSpeed, a.DeepSpeed) })
	return nil
}
