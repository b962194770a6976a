package compat

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/wheel"
)

// Proof is the state of verification of an op that uses torch's stable ABI.
type Proof struct {
	State     ProofState `json:"state"`
	DeepSpeed string     `json:"deepspeed"` // release; of the table of evidence
	Built     string     `json:"built"`     // X.Y of the torch whose headers it was compiled with
	// X.Y of the oldest torch whose headers it was compiled with, if that is another
	Headers string   `json:"headers,omitempty"`
	Torch   []string `json:"torch"`  // X.Y of those with which it ran or was loaded
	Python  []string `json:"python"` // X.Y, also
	How     string   `json:"how"`    // the tests, and their results
}

// ProofState is how far a proof goes.
type ProofState string

// The states, each of which includes those after it.
const (
	Ran ProofState = "ran" // it computed the same as the op of the C++ interface
	// it has the device code of that op, and launched it in the same way (ci/fakecuda); neither ran on a GPU
	Launched ProofState = "launched"
	Loaded   ProofState = "loaded" // it was loaded, and its functions checked their arguments
	Unproven ProofState = "none"
)

// StableState returns how far the op is proven with torch's stable ABI.
func (o Op) StableState() ProofState {
	if o.Stable == nil {
		return Unproven
	}
	return o.Stable.State
}

// doesTheSame reports whether the op is proven to do over torch's stable ABI what it does over the C++ interface.
func (o Op) doesTheSame() bool { return o.StableState() == Ran || o.StableState() == Launched }

// olderThanStable returns the reason if a torch is too old for the stable ABI, and "" otherwise.
func olderThanStable(torch string) string {
	if !olderMinor(torch, StableTorch) {
		return ""
	}
	return fmt.Sprintf("torch %s is older than %s, the first release with the stable ABI that dsbuild needs",
		torch, StableTorch)
}

// unprovenAs returns why an op cannot be built for an ABI with the headers of a torch. It
// returns "" if it can: the op must at least have been loaded.
func (o Op) unprovenAs(abi wheel.ABI, torch string) string {
	switch {
	case abi != wheel.StableABI:
	case !slices.Contains([]ProofState{Ran, Launched, Loaded}, o.StableState()):
		return fmt.Sprintf("op %s is not proven with torch's stable ABI (state %s)", o.Name, o.StableState())
	case !olderMinor(torch, StableTorch) && olderMinor(torch, cmp.Or(o.Stable.Headers, o.Stable.Built)):
		return fmt.Sprintf("op %s was not compiled with torch's stable ABI and the headers of torch %s, only of %s",
			o.Name, firstTwo(torch), o.Stable.Built)
	}
	return ""
}

// whyTorchMinor returns why a wheel for some torch is not of the stable ABI by default. It returns "" if it is.
// All its ops must be proven, as in this DeepSpeed, to do the same as over the C++ interface. Ops that have changed
// are ignored, unless all have.
func (w *requirements) whyTorchMinor(torch string) string {
	if why := olderThanStable(torch); why != "" {
		return why
	}
	var unproven, names []string
	for _, op := range w.ops {
		names = append(names, op.Name)
		if !op.doesTheSame() {
			unproven = append(unproven, op.Name)
		}
	}
	if n := len(unproven) - 3; n > 1 {
		unproven = append(unproven[:3], fmt.Sprintf("%d more", n))
	}
	switch {
	case len(unproven) > 0:
		return fmt.Sprintf("%s not proven with torch's stable ABI (dsbuild ops)", lists.And(unproven))
	case w.deepspeed.Changed == nil:
		return fmt.Sprintf("%s not proven with torch's stable ABI for DeepSpeed %s (dsbuild ops)", lists.And(names), w.deepspeed.Version)
	case !slices.ContainsFunc(w.ops, func(op Op) bool { return w.changed[op.Name] == "" }) && !w.namesOps():
		return w.whyChanged(w.ops[0])
	}
	return ""
}

// namesOps reports whether the user named ops.
func (w *requirements) namesOps() bool { return !w.defaults && slices.Contains(w.byName, true) }

// whyChanged returns the reason why an op that has changed is not proven.
func (w *requirements) whyChanged(op Op) string {
	return fmt.Sprintf("op %s is proven with torch's stable ABI only as in DeepSpeed %s, and differs here: %s",
		op.Name, op.Stable.DeepSpeed, w.changed[op.Name])
}

// chooseABI sets the toolchain's ABI, and the oldest Python for which there is a torch with the stable ABI.
func (a *evaluation) chooseABI() {
	if a.toolchain.ABI = a.request.ABI; a.toolchain.ABI == "" {
		// Choose the stable ABI if it is proven for every op, and else say why not.
		a.toolchain.ABI = wheel.StableABI
		why := a.whyTorchMinor(a.torch.Version)
		for i, op := range a.ops {
			if !a.leavesOut(i) && (a.byName[i] || !a.provenOps) { // else chooseOps omits it
				why = cmp.Or(why, op.unprovenAs(wheel.StableABI, a.torch.Version))
			}
		}
		if why != "" {
			a.toolchain.ABI = wheel.TorchMinor
			a.addNote("the wheel is only for torch %s and Python %s: %s", firstTwo(a.torch.Version), a.python, why)
		}
	}
	if a.toolchain.ABI == wheel.TorchMinor {
		a.refuseChanged()
		return
	}
	if why := olderThanStable(a.torch.Version); why != "" {
		a.addConflict("%s", why)
	}
	stable := slices.DeleteFunc(slices.Clone(a.Torches), func(r Torch) bool {
		return olderMinor(r.Version, StableTorch)
	})
	if pythons := allPythons(stable); len(pythons) > 0 {
		a.toolchain.PythonFrom = pythons[0]
	}
}

// refuseChanged adds a conflict if the search would choose an older torch only because a named op has changed.
func (a *evaluation) refuseChanged() {
	if a.request.ABI != "" || a.request.Torch != "" || olderThanStable(a.torch.Version) == "" || !a.namesOps() {
		return
	}
	for i, op := range a.ops {
		if a.byName[i] && a.changed[op.Name] != "" && a.whyTorchMinor(StableTorch) == "" {
			a.addConflict("%s", a.whyChanged(op))
		}
	}
}

// leavesOut reports whether a wheel of the stable ABI omits an op because it has changed and was not named.
func (a *evaluation) leavesOut(i int) bool {
	return a.toolchain.ABI == wheel.StableABI && a.changed[a.ops[i].Name] != "" && (a.defaults || !a.byName[i])
}

// remarkProofs adds notes about the ops that a wheel of the stable ABI omits, and its ops that were not proven to
// compute the right results.
func (a *evaluation) remarkProofs() {
	if a.toolchain.ABI != wheel.StableABI {
		return
	}
	var releases []string
	omitted := map[string][]string{} // by the release with the proof
	for i, op := range a.ops {
		if a.leavesOut(i) {
			releases = appendMissing(releases, []string{op.Stable.DeepSpeed})
			omitted[op.Stable.DeepSpeed] = append(omitted[op.Stable.DeepSpeed], fmt.Sprintf("%s (%s)", op.Name, a.changed[op.Name]))
		}
	}
	for _, release := range releases {
		a.addWarning("not proven with torch's stable ABI as in DeepSpeed %s, and omitted: %s; DeepSpeed compiles omitted ops on the node "+
			"when a job needs them; to build them for one torch, pass --abi torch", release, lists.And(omitted[release]))
	}
	var loaded []string
	for _, op := range a.toolchain.Ops {
		if !op.doesTheSame() {
			loaded = append(loaded, op.Name)
		}
	}
	if len(loaded) > 0 {
		a.addWarning("%s: only loaded with torch's stable ABI; no kernel has run on a GPU", lists.And(loaded))
	}
	if ops := a.toolchain.OpNames(false); a.deepspeed.Changed == nil && len(ops) > 0 {
		a.addWarning("%s: not proven with torch's stable ABI for DeepSpeed %s (dsbuild ops --json)", lists.And(ops), a.deepspeed.Version)
	}
}
