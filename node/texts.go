package node

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// texts are files of a node's packages, as they are. They are read here: a
// probe costs little where the program that the node has to compile is short.
type texts struct {
	Torch string   `json:"torch_text" text:"lines"` // torch/version.py
	Pip   string   `json:"pip_text" text:"lines"`   // pip/__init__.py
	Build string   `json:"build_text" text:"lines"` // DeepSpeed's git_version_info_installed.py
	NCCL  []string `json:"nccl_files"`              // names of files that have NCCL's version in theirs

	GLIBCXX []string `json:"glibcxx"`  // versions that libstdc++ offers, without the leading "3."
	ABI     string   `json:"abi_text"` // 0, 1, or how a constructor's name goes on
}

// fill adds what the texts say to the facts of the same node.
func (t texts) fill(f *Facts) {
	version, _, _ := strings.Cut(assigned(t.Torch, "__version__"), "+")
	if f.Torch = version; version != "" {
		f.TorchCUDA = assigned(t.Torch, "cuda")
		f.NCCL = ncclVersion(f.Dists, f.TorchCUDA, t.NCCL)
	}
	f.Libstdcxx, f.CXX11ABI = newestOf(t.GLIBCXX), cxx11ABI(t.ABI)
	if t.Pip != "" {
		f.Pip = cmp.Or(assigned(t.Pip, "__version__"), "unknown")
	}
	if d := f.DeepSpeed; d != nil {
		d.Ops, d.Build = buildRecord(t.Build)
	}
}

// cxx11ABI reads which std::string torch uses: from its own word, or from the
// type of a constructor's argument; nil if neither says.
func cxx11ABI(text string) *bool {
	switch {
	case text == "1", strings.HasPrefix(text, "NSt7__cxx11"):
		return new(true)
	case text == "0", strings.HasPrefix(text, "Ss"):
		return new(false)
	}
	return nil
}

// newestOf is the highest of the versions whose tails are given, such as 3.4.30;
// what is none is passed over.
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

// assigned is the string that a Python file assigns to a name at the beginning
// of a line; "" where it assigns none.
func assigned(source, name string) string {
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

// What DeepSpeed's record assigns dictionaries to, and an item of one.
var (
	installedOps   = assignment("installed_ops")
	torchInfo      = assignment("torch_info")
	dictionaryItem = regexp.MustCompile(`['"]([^'"]+)['"]\s*:\s*(?:['"]([^'"]*)['"]|([^,\s]+))`)
)

// assignment finds the dictionary that a Python file assigns to a name.
func assignment(name string) *regexp.Regexp {
	return regexp.MustCompile(`(?m)^` + name + `\s*=\s*\{([^}]*)\}`)
}

// dictionary is the strings, numbers and names in a dictionary that a Python
// file assigns; nil where it assigns none.
func dictionary(source string, to *regexp.Regexp) map[string]string {
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

// buildRecord reads what DeepSpeed wrote when it was compiled: the ops that
// were, and for what.
func buildRecord(source string) ([]string, *Build) {
	ops := []string{}
	all := dictionary(source, installedOps)
	for _, op := range slices.Sorted(maps.Keys(all)) {
		if !slices.Contains([]string{"False", "None", "0", ""}, all[op]) {
			ops = append(ops, op)
		}
	}
	torch := dictionary(source, torchInfo)
	if torch == nil {
		return ops, nil
	}
	known := func(name string) string {
		if torch[name] == "0.0" || torch[name] == "None" {
			return "" // how it writes that there is none
		}
		return torch[name]
	}
	return ops, &Build{Torch: known("version"), CUDA: known("cuda_version"), NCCL: known("nccl_version"), Accelerator: assigned(source, "accelerator_name")}
}

var ncclName = regexp.MustCompile(`^(?:nccl-|libnccl\.so\.)(\d+(?:\.\d+)+)`)

// ncclVersion is that of the distribution which torch requires, else what the
// names of files say; "" if neither does.
func ncclVersion(dists map[string]string, cuda string, files []string) string {
	major, _, _ := strings.Cut(cuda, ".")
	if v := dists["nvidia-nccl-cu"+major]; v != "" {
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
