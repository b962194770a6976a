package compat

import (
	"fmt"
	"maps"
	"slices"

	"github.com/dsbuild/dsbuild/wheel"
)

// Proof says how far an op that uses torch's stable ABI was proven.
type Proof struct {
	State     ProofState `json:"state"`
	DeepSpeed string     `json:"deepspeed"` // release
	Built     string     `json:"built"`     // X.Y of the torch whose headers it was compiled with
	Torch     []string   `json:"torch"`     // X.Y of those with which it ran or was loaded
	Python    []string   `json:"python"`    // X.Y, likewise
	How       string     `json:"how"`       // the tests, and their results
}

// ProofState says how far a proof goes.
type ProofState string

// The states, each of which includes those after it.
const (
	Ran      ProofState = "ran"      // it computed the same as the op of the C++ interface
	Loaded   ProofState = "loaded"   // it was loaded, and its functions checked their arguments
	Compiled ProofState = "compiled" // it was compiled and linked
	Unproven ProofState = "none"
)

// StableState returns how far the op is proven with torch's stable ABI.
func (o Op) StableState() ProofState {
	if o.Stable == nil {
		return Unproven
	}
	return o.Stable.State
}

// unprovenAs says why an op cannot be built for an ABI, or "": it must have been loaded at least.
func (o Op) unprovenAs(abi wheel.ABI) string {
	if abi != wheel.StableABI || o.StableState() == Ran || o.StableState() == Loaded {
		return ""
	}
	return fmt.Sprintf("op %s is not proven with torch's stable ABI (state %s)", o.Name, o.StableState())
}

// chooseABI sets the toolchain's ABI. For AutoABI it takes the stable one where every op ran with
// it, and else notes why not.
func (a *evaluation) chooseABI() {
	tooOld := ""
	if olderMinor(a.torch.Version, StableTorch) {
		tooOld = fmt.Sprintf("torch %s is older than %s, the first that has all of the stable ABI that dsbuild uses", a.torch.Version, StableTorch)
	}
	a.toolchain.ABI = wheel.TorchMinor
	switch a.spec.ABI {
	case wheel.StableABI:
		a.toolchain.ABI = wheel.StableABI
		if tooOld != "" {
			a.addConflict("%s", tooOld)
		}
	case wheel.AutoABI:
		why := tooOld
		if why == "" {
			why = a.whyNotRan()
		}
		if why != "" {
			a.addNote("the wheel is for torch %s alone: %s", firstTwo(a.torch.Version), why)
			break
		}
		a.toolchain.ABI = wheel.StableABI
	}
	if a.toolchain.ABI == wheel.StableABI {
		a.toolchain.PythonFrom = a.oldestStablePython()
	}
}

// whyNotRan says which op asked for did not run with the stable ABI, in this release of
// DeepSpeed; "" if all did.
func (a *evaluation) whyNotRan() string {
	for _, op := range a.ops {
		if op.StableState() != Ran {
			return fmt.Sprintf("op %s was not run with torch's stable ABI (state %s)", op.Name, op.StableState())
		}
		if other := a.otherThanProven(op); other != "" {
			return fmt.Sprintf("op %s with torch's stable ABI is %s", op.Name, other)
		}
	}
	return ""
}

// otherThanProven names the difference between the proof of an op and the planned build; "" if there is none.
func (a *evaluation) otherThanProven(op Op) string {
	switch p := op.Stable; {
	case p.DeepSpeed != a.deepspeed.Version:
		return fmt.Sprintf("proven for DeepSpeed %s, not for %s", p.DeepSpeed, a.deepspeed.Version)
	case olderMinor(a.torch.Version, p.Built):
		return fmt.Sprintf("proven as compiled with the headers of torch %s, not of %s", p.Built, firstTwo(a.torch.Version))
	}
	return ""
}

// remarkProofs names the ops of a wheel of the stable ABI that were not proven to compute what
// they should.
func (a *evaluation) remarkProofs() {
	if a.toolchain.ABI != wheel.StableABI {
		return
	}
	var loaded []string
	others := map[string][]string{} // by the reason
	for _, op := range a.toolchain.Ops {
		if op.StableState() != Ran {
			loaded = append(loaded, op.Name)
		}
		if other := a.otherThanProven(op); other != "" {
			others[other] = append(others[other], op.Name)
		}
	}
	if len(loaded) > 0 {
		a.addRemark("%s: loaded with torch's stable ABI, but no kernel was ever run, for lack of a GPU", joinWords(loaded))
	}
	for _, other := range slices.Sorted(maps.Keys(others)) {
		a.addRemark("%s: with torch's stable ABI %s", joinWords(others[other]), other)
	}
}

// oldestStablePython returns the oldest Python for which there is a torch with the stable ABI; "" if
// there is no such torch.
func (t *Tables) oldestStablePython() string {
	pythons := allPythons(slices.DeleteFunc(slices.Clone(t.Torches), func(r Torch) bool { return olderMinor(r.Version, StableTorch) }))
	if len(pythons) == 0 {
		return ""
	}
	return pythons[0]
}
