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

// chooseABI sets the toolchain's ABI, and the oldest Python for which there is a torch with the stable ABI.
func (a *evaluation) chooseABI() {
	a.toolchain.ABI = wheel.TorchMinor
	if a.spec.ABI != wheel.StableABI {
		return
	}
	a.toolchain.ABI = wheel.StableABI
	if olderMinor(a.torch.Version, StableTorch) {
		a.addConflict("torch %s is older than %s, the first that has all of the stable ABI that dsbuild uses", a.torch.Version, StableTorch)
	}
	if pythons := allPythons(slices.DeleteFunc(slices.Clone(a.Torches), func(r Torch) bool { return olderMinor(r.Version, StableTorch) })); len(pythons) > 0 {
		a.toolchain.PythonFrom = pythons[0]
	}
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
