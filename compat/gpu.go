package compat

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/wheel"
)

// GPUsNamed returns the products that a name can mean. It accepts names as people and nvidia-smi
// write them: "NVIDIA A100-SXM4-80GB", "rtx 4090", "RTX 3070 Ti Laptop GPU". It returns several
// rows only if the name is ambiguous ("RTX 6000" is a Quadro and an Ada).
func (t *Tables) GPUsNamed(name string) []GPU { return t.names().find(name) }

// gpuNames are all GPUs, as their names find them.
type gpuNames []namedGPU

// find is GPUsNamed.
func (all gpuNames) find(name string) []GPU {
	if otherMakers.MatchString(strings.TrimSpace(name)) { // "M4 Max" is no Tesla M4
		return nil
	}
	name = gpuCount.ReplaceAllString(name, "")
	keys := []string{gpuKey(name, true), gpuKey(name, false)}
	keys = append(keys, "rtx"+keys[1], "gtx"+keys[1]) // "4090"
	if rest, ok := strings.CutPrefix(keys[1], "rtx"); ok {
		keys = append(keys, "rtxpro"+rest) // "RTX 6000 Blackwell"
	}
	for _, key := range keys {
		if found := all.where(name, func(g namedGPU) bool { return slices.Contains(g.keys, key) }); len(found) > 0 {
			return found
		}
	}
	// No product has this name: the user may have omitted the brand.
	return all.where(name, func(g namedGPU) bool { return g.plain != "" && g.plain == keys[1] })
}

// where lists the GPUs that satisfy is and belong to every generation that a name names.
func (all gpuNames) where(name string, is func(namedGPU) bool) []GPU {
	var found []GPU
	for _, g := range all {
		if is(g) && ofGenerations(name, g.Arch) {
			found = append(found, g.GPU)
		}
	}
	return found
}

// generations are NVIDIA's names for the GPUs of a range of archs, with its first and its last.
var generations = map[string][2]string{
	"kepler":    {"3.0", "3.7"},
	"maxwell":   {"5.0", "5.3"},
	"pascal":    {"6.0", "6.2"},
	"volta":     {"7.0", "7.2"},
	"turing":    {"7.5", "7.5"},
	"ampere":    {"8.0", "8.7"},
	"ada":       {"8.9", "8.9"},
	"lovelace":  {"8.9", "8.9"},
	"hopper":    {"9.0", "9.0"},
	"blackwell": {"10.0", "12.1"},
}

// archsOf lists the archs of a generation's GPUs that are sold without a CPU, oldest first.
// It returns none if name is not a generation.
func (all gpuNames) archsOf(name string) []string {
	for _, word := range gpuWords.FindAllString(strings.ToLower(name), -1) {
		if _, ok := generations[word]; !ok {
			return nil
		}
	}
	var archs []string
	for _, g := range all {
		if name != "" && g.Machine == "" && ofGenerations(name, g.Arch) {
			archs = append(archs, g.Arch)
		}
	}
	return sortedVersions(archs)
}

// otherGeneration returns the GPU of a name with the wrong generation ("A100 Blackwell"), or nil.
func (all gpuNames) otherGeneration(name string) *GPU {
	bare := gpuWords.ReplaceAllStringFunc(strings.ToLower(name), func(word string) string {
		if _, ok := generations[word]; ok {
			return ""
		}
		return word
	})
	if rows := all.find(bare); len(rows) > 0 && len(all.find(name)) == 0 {
		return &rows[0]
	}
	return nil
}

// several returns the GPUs that a name joins, as severalNames does.
func (all gpuNames) several(name string) string {
	return severalNames(name, func(n string) bool { return len(all.find(n)) > 0 })
}

// ofGenerations reports whether an arch belongs to every generation that the words of a GPU's name name.
func ofGenerations(name, arch string) bool {
	for _, word := range gpuWords.FindAllString(strings.ToLower(name), -1) {
		if span, ok := generations[word]; ok && (olderMinor(arch, span[0]) || olderMinor(span[1], arch)) {
			return false
		}
	}
	return true
}

var (
	gpuWords = regexp.MustCompile(`[a-z0-9]+`)
	// Memory ("80gb", "1g"), vGPU profiles ("48q"), form ("sxm4") and make.
	gpuNoise = regexp.MustCompile(`^([0-9]+(gb?|[abcq])|` +
		`sxm[0-9]*|pcie|nvl[0-9]*|nvlink|hbm[0-9]e?|3e|mig|fhhl|dgxs|cnx|grid|vgpu|` +
		`r|tm|ac|corporation|nvidia|geforce|tesla|gpu|laptop|notebook|mobile|max|q|desktop|design|with|active|` +
		`kepler|maxwell|volta|turing|ampere|lovelace|hopper|blackwell|` +
		`generation|edition|workstation|server|sff|superchip|devkit|developer|kit|module|` +
		`nvgpu|hgx|dgx|station|collectors|founders)$`)
	// How many: "4x A100", "8xH100", "A100 x8", "A100*8".
	gpuCount   = regexp.MustCompile(`(?i)^[0-9]{1,2} ?[x*] ?|( x ?| ?\* ?)[0-9]{1,2}$`)
	gpuVariant = regexp.MustCompile(`([0-9])(ti|super|d|v2)+$`)
)

// namedGPU is a GPU with the keys by which find finds it.
type namedGPU struct {
	GPU
	keys  []string // of its names, see gpuKey
	plain string   // of its name without the brand
}

// nameGPUs computes the keys of GPUs.
func nameGPUs(all []GPU) gpuNames {
	out := make(gpuNames, len(all))
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
	if at := slices.Index(kept, "pro"); at > 1 && kept[0] == "rtx" { // "RTX 6000 Pro"
		kept = slices.Insert(slices.Delete(kept, at, at+1), 1, "pro")
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

// nearest lists the products that a misspelled name may mean, nearest first. The names differ
// by at most one letter in four; in a short name one letter may differ. Most names resemble none.
func (all gpuNames) nearest(name string) []string {
	key := gpuKey(name, false)
	far := func(g namedGPU) int {
		least := lineerr.Distance(key, g.plain)
		for _, k := range g.keys {
			least = min(least, lineerr.Distance(key, k))
		}
		return least
	}
	isNumber := strings.Trim(key, "0123456789") == "" // 80 is an arch sooner than a K80
	if isNumber || otherMakers.MatchString(strings.TrimSpace(name)) ||
		all.otherGeneration(name) != nil || all.several(name) != "" {
		return nil
	}
	rows := slices.DeleteFunc(slices.Clone(all), func(g namedGPU) bool {
		return far(g) > max(1, len(key)/4)*lineerr.Letter || !ofGenerations(name, g.Arch) || !sameNumbers(key, g)
	})
	slices.SortStableFunc(rows, func(a, b namedGPU) int { return cmp.Compare(far(a), far(b)) })
	out := lists.Map(rows[:min(len(rows), 3)], func(g namedGPU) string { return g.Name })
	// A name may say more than the product: "A100 PG509-200".
	words := strings.Fields(name)
	for n := len(words) - 1; n > 0 && len(out) == 0; n-- {
		for _, g := range all.find(strings.Join(words[:n], " ")) {
			out = append(out, g.Name)
		}
	}
	return out
}

// sameNumbers reports whether a key has the digits of a GPU: a different number is a different product,
// not a misspelling. Letters that look like a digit count as one.
func sameNumbers(key string, g namedGPU) bool {
	digits := func(s string) string {
		return strings.Map(func(r rune) rune {
			if r < '0' || r > '9' {
				return -1
			}
			return r
		}, strings.NewReplacer("o", "0", "l", "1", "i", "1").Replace(s))
	}
	return !strings.ContainsAny(key, "0123456789") ||
		slices.ContainsFunc(append([]string{g.plain}, g.keys...), func(k string) bool {
			return digits(k) == digits(key)
		})
}

// runsCodeFor reports whether a GPU of an arch runs machine code for another arch: with the same major and
// a lower or equal minor version. Code for Tegra, the GPUs on one chip with their CPU, runs neither on
// other GPUs nor on another Tegra, and other code does not run on Tegra.
func (t *Tables) runsCodeFor(code, gpu wheel.Arch) bool {
	code.PTX, gpu.PTX = false, false
	if t.tegra[code] || t.tegra[gpu] {
		return code == gpu
	}
	return code.Major == gpu.Major && code.Minor <= gpu.Minor
}

// archOf turns a compute capability of the tables into an Arch.
func archOf(capability string) wheel.Arch {
	n := releaseNumbers(capability)
	return wheel.Arch{Major: n[0], Minor: n[1]}
}
