package ship

import (
	"errors"
	"fmt"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/each"
	"github.com/dsbuild/dsbuild/internal/fault"
)

// WithEnvironment returns an Options.Assume: the facts of a node once it has an environment with a
// Python X.Y and a torch, such as 2.15.0 or 2.15.0+cu126.
func WithEnvironment(tables *compat.Tables, python, torch string) (func(node.Facts) node.Facts, error) {
	version, local, _ := strings.Cut(torch, "+")
	cuda := ""
	digits, isCUDA := strings.CutPrefix(local, "cu")
	switch {
	case isCUDA && len(digits) > 1:
		cuda = digits[:len(digits)-1] + "." + digits[len(digits)-1:]
	case local == "":
		for _, r := range tables.Torches {
			if r.Version == version {
				cuda = r.CUDA
			}
		}
		if cuda == "" {
			return nil, fault.WithHint(fault.WithCode(errors.New("dsbuild does not know the CUDA of torch "+version), 2), "name it: torch: %s+cu132", version)
		}
	}
	return func(f node.Facts) node.Facts {
		f.Python, f.Tag = python+".0", "cp"+strings.ReplaceAll(python, ".", "")
		f.ExternallyManaged = false // the environment has a folder of its own
		f.Torch, f.TorchCUDA, f.CXX11ABI, f.DeepSpeed, f.Missing = version, cuda, nil, nil, nil
		return f
	}, nil
}

// Probed returns the facts of the nodes that answered, as they are.
func (s *Shipment) Probed() []node.Facts { return s.probed }

// OneWheel returns the path of the one wheel of all nodes, which Build has put into Options.Dir. An
// environment has one DeepSpeed for each kind of node.
func (s *Shipment) OneWheel() (string, error) {
	if err := s.plan.noWheelError(); err != nil {
		return "", err
	}
	if len(s.plan.Wheels) != 1 {
		names := each.Map(s.plan.Wheels, func(w *Wheel) string { return w.Name })
		err := fmt.Errorf("the nodes need %d wheels (%s), and an environment has one DeepSpeed", len(names), strings.Join(names, ", "))
		return "", fault.WithCode(fault.WithHint(err, "ship to nodes of one kind at a time with --limit, each kind with its own environment"), 2)
	}
	w := s.plan.Wheels[0]
	return w.Artifact.Path, w.Err
}
