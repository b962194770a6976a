package wheel

import (
	"bytes"
	"cmp"
	"errors"
	"path"
	"regexp"
	"slices"
	"strings"
)

// opNames returns the names of DeepSpeed's ops; a wheel of another project has none.
func (c Contents) opNames() []string {
	ops := []string{}
	for _, e := range c.Extensions {
		if c.IsDeepSpeed() && strings.HasPrefix(e.Path, "deepspeed/") {
			ops = append(ops, e.Op())
		}
	}
	slices.Sort(ops)
	return slices.Compact(ops)
}

// pythonOf reads the Python of tags: "3.11" of cp311-cp311, "3.8+" of
// cp38-abi3, "" of py3-none.
func pythonOf(tags []string) string {
	for _, t := range tags {
		if m := cpythonTag.FindStringSubmatch(t); m != nil {
			version := m[1] + "." + m[2]
			if m[3] == "abi3" {
				version += "+"
			}
			return version
		}
	}
	return ""
}

// modulesPython returns the Python, X.Y, in the names of all extension modules. It returns "" if they differ or name
// none.
func (c Contents) modulesPython() string {
	found := ""
	for _, e := range c.Extensions {
		m := moduleName.FindStringSubmatch(path.Base(e.Path))
		if m == nil {
			continue
		}
		if version := m[1] + "." + m[2]; found == "" {
			found = version
		} else if found != version {
			return ""
		}
	}
	return found
}

var moduleName = regexp.MustCompile(`\.cpython-(\d)(\d+)t?-[a-z0-9_]+-linux-gnu\.so$`)

var cpythonTag = regexp.MustCompile(`^cp(\d)(\d+)-(\w+)-`)

// boundVersions returns the torch and CUDA for which a wheel was built, according to its version's
// local part, its requirements and the libraries it loads.
func (c Contents) boundVersions(version string) (torch, cuda string) {
	if m := localCUDA.FindStringSubmatch(version); m != nil {
		cuda = strings.TrimSuffix(m[1]+"."+m[2], ".")
	}
	if m := localTorch.FindStringSubmatch(version); m != nil {
		torch = torchMinor(m[1], cuda)
	}
	bound := pinnedTorch
	if c.TorchABI.IsStable() {
		bound = oldestTorch
	}
	for _, r := range c.Requires {
		if m := bound.FindStringSubmatch(r); m != nil && torch == "" {
			torch = m[1]
		}
	}
	return torch, cmp.Or(cuda, c.runtime())
}

// torchMinor reads the torch of a local version: "2.7" of 2.7, 2.7.0, 27 and 270. Without dots, 210
// is 2.10 if the CUDA is newer than torch 2.1, 2.1.0 for an older CUDA, and unknown without a CUDA.
func torchMinor(text, cuda string) string {
	if strings.Contains(text, ".") {
		return Minor(text)
	}
	major, rest := text[:1], text[1:]
	switch {
	case len(rest) < 2 || rest[0] != '1':
		return major + "." + rest[:1]
	case len(rest) > 2: // 2100
		return major + "." + rest[:2]
	case !strings.Contains(cuda, "."):
		return ""
	case CompareVersions(cuda, "12.1") > 0:
		return major + "." + rest
	}
	return major + "." + rest[:1]
}

// runtime returns the CUDA whose runtime the extensions load. It returns "" if they load several,
// as in a wheel that chooses at run time.
func (c Contents) runtime() string {
	found := ""
	for _, e := range c.Extensions {
		switch cuda := e.runtime(); {
		case cuda != "" && found != "" && cuda != found:
			return ""
		case cuda != "":
			found = cuda
		}
	}
	return found
}

// runtime returns the CUDA whose runtime the extension loads. It returns "" if it loads none.
func (e Extension) runtime() string {
	for _, lib := range e.Needs {
		if m := cudart.FindStringSubmatch(lib); m != nil {
			return strings.TrimSuffix(m[1], ".0")
		}
	}
	return ""
}

var (
	localTorch  = regexp.MustCompile(`\+(?:.*[^a-z])?(?:pt|torch)(\d\.\d+(?:\.\d+)?|\d{2,4})`)
	localCUDA   = regexp.MustCompile(`\+(?:.*[^a-z])?cu(1\d)(\d?)(?:\D|$)`)
	pinnedTorch = regexp.MustCompile(`^torch *==(\d+\.\d+)`)
	oldestTorch = regexp.MustCompile(`^torch *>=(\d+\.\d+)$`)
	cudart      = regexp.MustCompile(`^libcudart\.so\.(\d+(?:\.\d+)?)`)
)

// readInstalled reads which torch and CUDA DeepSpeed's build recorded. DeepSpeed itself loads its
// ops only under these. For a wheel without ops the record is meaningless.
func (c *Contents) readInstalled(a *Archive) error {
	const name = "deepspeed/git_version_info_installed.py"
	if len(c.Ops) == 0 {
		return nil
	}
	text, err := a.ReadFile(name, maxText)
	if errors.Is(err, errNoMember) {
		return nil
	}
	if err != nil {
		return err
	}
	for field, pattern := range map[*string]*regexp.Regexp{&c.Torch: torchInfo, &c.CUDA: cudaInfo} {
		if m := pattern.FindSubmatch(text); m != nil {
			*field = strings.TrimPrefix(string(bytes.Join(m[1:], nil)), "0.0") // 0.0: a torch without CUDA
		}
	}
	return nil
}

var (
	torchInfo = regexp.MustCompile(`torch_info=\{.*?'version': *['"](\d+\.\d+)['"]`)
	// with the stable ABI, the build CUDA's major version; empty if there are several
	cudaInfo = regexp.MustCompile(`torch_info=(?:\{.*?'cuda_version': *['"](\d+\.\d+)['"]|` +
		`_stable_abi\.torch_info\(.*\}, \(?['"](\d+)['"],?\))`)
)
