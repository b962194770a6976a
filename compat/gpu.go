package compat

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/diagnostic"
	"github.com/dsbuild/dsbuild/wheel"
)

// GPUsNamed returns the products that a name can mean. It accepts names as people and nvidia-smi
// write them: "NVIDIA A100-SXM4-80GB", "rtx 4090", "RTX 3070 Ti Laptop GPU". It returns several
// rows only if the name is ambiguous ("RTX 6000" is a Quadro and an Ada).
func (t *Tables) GPUsNamed(name string) []GPU {
	keys := []string{gpuKey(name, true), gpuKey(name, false)}
	keys = append(keys, "rtx"+keys[1], "gtx"+keys[1]) // "4090"
	for _, key := range keys {
		var found []GPU
		for _, g := range t.named() {
			if slices.Contains(g.keys, key) {
				found = append(found, g.GPU)
			}
		}
		if len(found) > 0 {
			return found
		}
	}
	// No product has this name: the user may have left out the brand.
	key := gpuKey(name, false)
	var found []GPU
	for _, g := range t.named() {
		if key != "" && g.plain == key {
			found = append(found, g.GPU)
		}
	}
	return found
}

// isForeign reports whether the GPU sits beside a CPU that no x86_64 wheel runs on.
func (g GPU) isForeign() bool { return g.Machine != "" && g.Machine != x86Machine }

const x86Machine = "x86_64"

var (
	gpuWords = regexp.MustCompile(`[a-z0-9]+`)
	// Memory ("80gb", "1g"), vGPU profiles ("48q"), form ("sxm4") and make.
	gpuNoise = regexp.MustCompile(`^([0-9]+(gb?|[abcq])|sxm[0-9]*|pcie|nvl[0-9]*|nvlink|hbm[0-9]e?|3e|mig|fhhl|dgxs|cnx|grid|vgpu|` +
		`r|tm|ac|corporation|nvidia|geforce|tesla|gpu|laptop|notebook|mobile|max|q|desktop|design|with|active|` +
		`blackwell|generation|edition|workstation|server|sff|superchip|devkit|developer|kit|module|nvgpu|hgx)$`)
	gpuVariant = regexp.MustCompile(`([0-9])(ti|super|d|v2)+$`)
)

// namedGPU is a GPU with the keys by which GPUsNamed finds it.
type namedGPU struct {
	GPU
	keys  []string // of its names, see gpuKey
	plain string   // of its name without the brand
}

// nameGPUs computes the keys of GPUs.
func nameGPUs(all []GPU) []namedGPU {
	out := make([]namedGPU, len(all))
	for i, g := range all {
		out[i] = namedGPU{GPU: g, plain: gpuKey(g.Name, false)}
		for _, name := range append([]string{g.Name}, g.Also...) {
			key := gpuKey(name, true)
			out[i].keys = append(out[i].keys, key)
			if bare := strings.TrimPrefix(key, "jetson"); bare != key { // "AGX Orin"
				out[i].keys = append(out[i].keys, bare)
			}
		}
	}
	return out
}

// gpuKey reduces a name to the words that determine the arch. Quadro is one of them ("Quadro RTX
// 6000"), so gpuKey removes it only if brand is false.
func gpuKey(name string, brand bool) string {
	var kept []string
	for _, word := range gpuWords.FindAllString(strings.ToLower(name), -1) {
		if !gpuNoise.MatchString(word) && (brand || word != "quadro") {
			kept = append(kept, word)
		}
	}
	key := strings.Join(kept, "")
	for _, glued := range []string{"nvidia", "geforce", "tesla"} {
		key = strings.TrimPrefix(key, glued)
	}
	return gpuVariant.ReplaceAllString(key, "$1")
}

// ShortGPU is a GPU's name without make, memory and form: "RTX 2080 Ti" for
// "NVIDIA GeForce RTX 2080 Ti", "A100" for "NVIDIA A100-SXM4-80GB".
func ShortGPU(name string) string {
	var kept []string
	for _, word := range strings.FieldsFunc(name, func(r rune) bool { return r == ' ' || r == '-' }) {
		parts := gpuWords.FindAllString(strings.ToLower(word), -1)
		if slices.ContainsFunc(parts, func(p string) bool { return !gpuNoise.MatchString(p) }) {
			kept = append(kept, word)
		}
	}
	return cmp.Or(strings.Join(kept, " "), strings.TrimSpace(name))
}

// NearestGPUs lists the products that a misspelled name may mean, nearest first. The names differ
// by at most one letter in four; in a short name one letter may differ. Most names resemble none.
func (t *Tables) NearestGPUs(name string) []string {
	key := gpuKey(name, false)
	far := func(g namedGPU) int {
		least := diagnostic.Distance(key, g.plain)
		for _, k := range g.keys {
			least = min(least, diagnostic.Distance(key, k))
		}
		return least
	}
	if strings.Trim(key, "0123456789") == "" { // 80 is an arch sooner than a K80
		return nil
	}
	rows := slices.DeleteFunc(slices.Clone(t.named()), func(g namedGPU) bool { return far(g) > max(1, len(key)/4)*diagnostic.Letter })
	slices.SortStableFunc(rows, func(a, b namedGPU) int { return cmp.Compare(far(a), far(b)) })
	var out []string
	for _, g := range rows[:min(len(rows), 3)] {
		out = append(out, g.Name)
	}
	return out
}

func archDistance(a, b string) int {
	x, y := releaseNumbers(a), releaseNumbers(b)
	return max(x[0]*10+x[1], y[0]*10+y[1]) - min(x[0]*10+x[1], y[0]*10+y[1])
}

// archOf turns a compute capability of the tables into an Arch.
func archOf(capability string) wheel.Arch {
	n := releaseNumbers(capability)
	return wheel.Arch{Major: n[0], Minor: n[1]}
}
