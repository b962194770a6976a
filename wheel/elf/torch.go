package elf

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Torch lists an object's imports from torch: the names of its undefined dynamic symbols.
type Torch struct {
	// C are the functions of torch's C interface, sorted: torch_… and aoti_torch_…. torch promises
	// to keep them.
	C []string
	// CXX is a name of torch's C++ interface that the object imports, "" if it imports none. Such
	// an object is for one minor of torch.
	CXX string
	// Python is a name of Python's C interface that the object imports, "" if it imports none.
	Python string
}

// torchCXX matches the mangled name (Itanium C++ ABI, 5.1) of a function, a variable or the type
// information of a class in one of torch's namespaces. Names that only have such a class among
// their parameters do not match.
var torchCXX = regexp.MustCompile(`^_Z(?:T[ISVTC]|GV)?N[rVKRO]*(?:2at|3c10|4c10d|5torch|6caffe2)[0-9A-Z]`)

// longestTorch bounds the part of a name that is looked at, in bytes.
const longestTorch = 256

var pythonC = regexp.MustCompile(`^_?Py[A-Z_]`)

// describeTorch fills in o's imports from torch. all has the names.
func (p *parts) describeTorch(o *Object, all string) error {
	o.Torch.C = []string{}
	c := map[string]bool{}
	for _, at := range p.undefined {
		name := all[at:min(len(all), int(at)+longestTorch)]
		if end := strings.IndexByte(name, 0); end >= 0 {
			name = name[:end]
		}
		switch {
		case strings.HasPrefix(name, "torch_"), strings.HasPrefix(name, "aoti_torch_"):
			text, err := p.name(p.symbols, uint64(at))
			if err != nil {
				return err
			}
			c[text] = true
		case o.Torch.CXX == "" && torchCXX.MatchString(name):
			o.Torch.CXX = strings.Clone(name)
		case o.Torch.Python == "" && pythonC.MatchString(name):
			o.Torch.Python = strings.Clone(name)
		}
	}
	o.Torch.C = slices.AppendSeq(o.Torch.C, maps.Keys(c))
	slices.Sort(o.Torch.C)
	return nil
}
