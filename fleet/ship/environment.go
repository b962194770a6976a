package ship

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

// WithEnvironment returns an Options.Assume: the facts of a node once it has an environment with a
// Python X.Y and a torch, such as 2.15.0 or 2.15.0+cu126.
func WithEnvironment(python, torch string) (func(node.Facts) node.Facts, error) {
	tables, err := compat.NewTables()
	if err != nil {
		return nil, err
	}
	version, local, _ := strings.Cut(torch, "+")
	if local == "" && tables.TorchCUDA(torch, wheel.X86) == "" {
		err := errors.New("unknown CUDA version of torch " + version)
		return nil, fault.WithHint(fault.WithCode(err, 2), "set it: torch: %s+cu132", version)
	}
	return func(f node.Facts) node.Facts {
		f.Python, f.Tag = python+".0", "cp"+strings.ReplaceAll(python, ".", "")
		f.ExternallyManaged = false // the environment is new
		f.Torch, f.TorchBuild, f.TorchCUDA = version, local, tables.TorchCUDA(torch, strings.TrimPrefix(f.Platform, "linux_"))
		f.CXX11ABI, f.DeepSpeed, f.Missing = nil, nil, nil
		return f
	}, nil
}

// Served returns the facts of the nodes that get a wheel, as they are.
func (s *Ship) Served() []node.Facts {
	var facts []node.Facts
	for _, w := range s.selection.Wheels {
		for _, i := range w.indexes {
			facts = append(facts, s.probed[i])
		}
	}
	return facts
}

// WheelsByMachine returns the paths of the wheels once Build has put them into Options.Dir; before, a path may be
// empty. The nodes of one machine type must have one wheel: an environment has one DeepSpeed for them.
func (s *Ship) WheelsByMachine() ([]string, error) {
	if err := s.selection.noWheelError(); err != nil {
		return nil, err
	}
	if len(s.selection.Wheels) == 0 {
		return nil, s.selection.Err()
	}
	var paths []string
	of := map[string]*Delivery{}
	for _, w := range s.selection.Wheels {
		machine := cmp.Or(w.Request.CPU.Machine(), w.Request.Machine)
		switch other := of[machine]; {
		case w.Err != nil:
			return nil, fmt.Errorf("%s: %w", w.Name, w.Err)
		case other != nil:
			const text = "nodes of %s need different wheels (%s, %s), but an environment has one DeepSpeed per CPU architecture"
			const hint = "ship to one node type at a time with --limit, each with its own environment"
			err := fmt.Errorf(text, machine, other.Name, w.Name)
			return nil, fault.WithCode(fault.WithHint(err, hint), 2)
		}
		of[machine] = w
		paths = append(paths, w.Artifact.Path)
	}
	return paths, nil
}
