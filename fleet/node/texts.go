package node

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/wheel"
)

// texts are raw files of a node's packages. They are parsed here, because the node has to compile the probe's program:
// the shorter it is, the less a probe costs.
type texts struct {
	Torch string   `json:"torch_text"` // torch/version.py
	Pip   string   `json:"pip_text"`   // pip/__init__.py
	Build string   `json:"build_text"` // DeepSpeed's git_version_info_installed.py
	NCCL  []string `json:"nccl_files"` // names of files that contain NCCL's version

	GLIBCXX []string `json:"glibcxx"`  // versions that libstdc++ offers, without the leading "3."
	ABI     string   `json:"abi_text"` // 0, 1, or the rest of a constructor's name
}

// fillFacts adds the facts in the texts to the facts of the same node.
func (t texts) fillFacts(f *Facts) {
	f.Torch, f.TorchBuild, _ = strings.Cut(assignedString(t.Torch, "__version__"), "+")
	if f.Torch != "" {
		f.TorchCUDA = assignedString(t.Torch, "cuda")
		f.NCCL = ncclVersion(f.Dists, f.TorchCUDA, t.NCCL)
	}
	f.Libstdcxx = newestOf(t.GLIBCXX)
	// torch's own setting, or else the type of a constructor's argument, tells which std::string it uses.
	switch {
	case t.ABI == "1", strings.HasPrefix(t.ABI, "NSt7__cxx11"):
		f.CXX11ABI = new(true)
	case t.ABI == "0", strings.HasPrefix(t.ABI, "Ss"):
		f.CXX11ABI = new(false)
	}
	if t.Pip != "" {
		f.Pip = cmp.Or(assignedString(t.Pip, "__version__"), "unknown")
	}
	if d := f.DeepSpeed; d != nil {
		d.Ops, d.Build = buildRecord(t.Build)
		d.Stable, d.Variants = stableRecord(t.Build)
	}
}

// newestOf returns the highest of the versions whose tails are given, such as 3.4.30. It skips
// texts that are not versions.
func newestOf(versions []string) string {
	numbers := func(version string) []int {
		var out []int
		for part := range strings.SplitSeq(version, ".") {
			n, err := strconv.Atoi(part)
			if err != nil {
				return nil
			}
			out = append(out, n)
		}
		return out
	}
	newest := ""
	for _, v := range versions {
		v = "3." + v
		if slices.Compare(numbers(v), numbers(newest)) > 0 {
			newest = v
		}
	}
	return newest
}

// assignedString returns the string that a Python file assigns to a name at the beginning of a
// line, or "".
func assignedString(source, name string) string {
	for line := range strings.Lines(source) {
		rest, ok := strings.CutPrefix(line, name)
		between, value, is := strings.Cut(rest, "=")
		between, value = strings.TrimSpace(between), strings.TrimSpace(value)
		if !ok || !is || between != "" && !strings.HasPrefix(between, ":") || value == "" {
			continue // another name, or no assignment
		}
		if quote := value[:1]; quote == "'" || quote == `"` {
			value, _, _ = strings.Cut(value[1:], quote)
			return value
		}
	}
	return ""
}

// The dictionaries that DeepSpeed's build record assigns, and an item of one.
var (
	installedOps   = assignmentPattern("installed_ops")
	torchInfo      = assignmentPattern("torch_info")
	dictionaryItem = regexp.MustCompile(`['"]([^'"]+)['"]\s*:\s*(?:['"]([^'"]*)['"]|([^,\s]+))`)
)

// assignmentPattern finds the dictionary that a Python file assigns to a name.
func assignmentPattern(name string) *regexp.Regexp {
	return regexp.MustCompile(`(?m)^` + name + `\s*=\s*\{([^}]*)\}`)
}

// parseDictionary returns the strings, numbers and names in a dictionary that a Python file
// assigns. It returns nil if there is no assignment.
func parseDictionary(source string, to *regexp.Regexp) map[string]string {
	whole := to.FindStringSubmatch(source)
	if whole == nil {
		return nil
	}
	found := map[string]string{}
	for _, item := range dictionaryItem.FindAllStringSubmatch(whole[1], -1) {
		found[item[1]] = item[2] + item[3]
	}
	return found
}

// buildRecord reads the record that DeepSpeed wrote when it was compiled: the compiled ops and
// their target.
func buildRecord(source string) ([]string, *Build) {
	ops := []string{}
	all := parseDictionary(source, installedOps)
	for _, op := range slices.Sorted(maps.Keys(all)) {
		if !slices.Contains([]string{"False", "None", "0", ""}, all[op]) {
			ops = append(ops, op)
		}
	}
	torch := parseDictionary(source, torchInfo)
	if torch == nil {
		return ops, nil
	}
	known := func(name string) string {
		if torch[name] == "0.0" || torch[name] == "None" {
			return "" // DeepSpeed writes this if it has none
		}
		return torch[name]
	}
	return ops, &Build{
		Torch: known("version"), CUDA: known("cuda_version"), NCCL: known("nccl_version"),
		Accelerator: assignedString(source, "accelerator_name"),
	}
}

// What pipeline/scripts/variants.py adds to the build record of a wheel over torch's stable ABI: the ops with device code, and
// their CUDA major versions.
var (
	stableOps  = regexp.MustCompile(`(?m)^accelerator_name, installed_ops = _stable_abi\.accelerator\(installed_ops, \(([^)]*)\)\)$`)
	stableCUDA = regexp.MustCompile(`(?m)^torch_info=_stable_abi\.torch_info\(\{[^}]*\}, (.*)\)$`)
	quoted     = regexp.MustCompile(`'([^']+)'`)
)

// stableRecord reports whether a build record belongs to a wheel over the stable ABI, and returns its variants with device code.
func stableRecord(source string) (stable bool, variants []wheel.Variant) {
	ops, cuda := stableOps.FindStringSubmatch(source), stableCUDA.FindStringSubmatch(source)
	if ops == nil || cuda == nil {
		return false, nil
	}
	names := func(text string) (found []string) {
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			found = append(found, m[1])
		}
		return found
	}
	for _, major := range names(cuda[1]) {
		variants = append(variants, wheel.Variant{CUDA: major, Ops: names(ops[1])})
	}
	return true, variants
}

var ncclName = regexp.MustCompile(`^(?:nccl-|libnccl\.so\.)(\d+(?:\.\d+)+)`)

// ncclVersion returns the version of the distribution that torch requires, or else the version in
// the names of files, or else "".
func ncclVersion(dists map[string]string, cuda string, files []string) string {
	if v := dists["nvidia-nccl-cu"+wheel.Major(cuda)]; v != "" {
		return v
	}
	for _, name := range slices.Sorted(maps.Keys(dists)) {
		if strings.HasPrefix(name, "nvidia-nccl-cu") {
			return dists[name]
		}
	}
	for _, file := range files {
		if m := ncclName.FindStringSubmatch(file); m != nil {
			return m[1]
		}
	}
	return ""
}
