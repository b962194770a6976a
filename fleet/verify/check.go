package verify

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/connect"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/wheel"
)

var (
	checkProgram   = node.NewProgram("check")
	inspectProgram = node.NewFollowUp(node.NewProgram("inspect_files"))
	loadProgram    = node.NewProgram("load_ops")
	packageProgram = node.NewProgram("load_packages")
	computeProgram = node.NewProgram("compute_ops")
)

// Level is how thorough a verification is.
type Level string

// The levels of --verify.
const (
	LevelLoad  Level = "load"  // import DeepSpeed and load every op
	LevelFiles Level = "files" // compare files with the RECORD's hashes, and check metadata

	// LevelCompute, only of verify, is LevelLoad, and compares what each op computes with torch.
	LevelCompute Level = "compute"
)

// Installation describes what a node should have installed, and how to check it.
type Installation struct {
	Level       Level             `json:"level"`
	Version     string            `json:"version"`
	Record      string            `json:"record"` // sha256 of its RECORD
	Ops         []string          `json:"ops"`
	ExtraWheels map[string]string `json:"extra_wheels,omitempty"` // the versions of the packages installed with it, by name
}

// answer is a message from check.py.
type answer struct {
	Op       string `json:"op"` // the op that is loaded next
	Failed   string `json:"failed"`
	Advice   string `json:"advice"` // the code of a hint
	Verified *Reply `json:"verified"`
}

// Reply is the versions that a verification has found.
type Reply struct {
	Version string `json:"version"`
	Torch   string `json:"torch"`
	CUDA    string `json:"cuda"`
}

// noAnswer is the error of a program on a node that ended without a result.
func noAnswer() error {
	return fault.WithHint(errors.New("verification ended without a result"),
		"rerun with --logs DIR to keep the node's output")
}

// Check checks on one node that an environment has an installation, by a program that imports DeepSpeed there. python
// is its interpreter, whose facts these are; m is the wheel's manifest.
func Check(
	ctx context.Context, n *fleet.Node, python string, facts node.Facts, m wheel.Manifest, want Installation,
) error {
	script := node.Script{Python: python, Program: checkProgram, Request: want}
	var last answer
	op := ""
	err := script.Run(ctx, connect.WithEnv(n.Runner, acceleratorEnv(forCUDA(m), facts)), func(message json.RawMessage) error {
		last = answer{}
		err := node.Decode(message, &last)
		if last.Op != "" {
			op = last.Op
		}
		return err
	})
	switch {
	case err != nil && op != "":
		return loadError(err, "loading", op, m.CPU, facts.CPU)
	case err != nil:
		return err
	case last.Failed != "":
		return node.WithAdvice(node.NewNodeError(last.Failed), last.Advice, python, &facts)
	case last.Verified == nil:
		return noAnswer()
	}
	return nil
}

// LoadPackages loads the machine code of installed packages on a node, as a job that imports them would: an undefined symbol, a
// missing version or a missing library is an error. What a node without GPU, driver or MPI cannot load is a warning. It starts no
// program if no file is for one platform. Torch's own packages are loaded by torch, and DeepSpeed's ops by Check.
func LoadPackages(ctx context.Context, n *fleet.Node, python string, files map[string]string) error {
	var request struct {
		Packages []string `json:"packages"`
	}
	native := false
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if name != "deepspeed" && (name == "torch" || !wheel.IsTorchPackage(name)) {
			native = native || !strings.HasSuffix(files[name], "-any.whl")
			request.Packages = append(request.Packages, name) // a wheel for any platform may have machine code, too
		}
	}
	if !native {
		return nil
	}
	var answer struct {
		Package string `json:"package"` // that is loaded next
		Loaded  *struct {
			Errors []string `json:"errors"`
			Notes  []string `json:"notes"`
		} `json:"loaded"`
	}
	script := node.Script{Python: python, Program: packageProgram, Request: request}
	err := script.Run(ctx, n.Runner, func(message json.RawMessage) error { return node.Decode(message, &answer) })
	switch {
	case err != nil && answer.Package != "":
		return fmt.Errorf("loading %s: %w", node.PlainVersion(answer.Package), err)
	case err != nil:
		return err
	case answer.Loaded == nil:
		return noAnswer()
	case len(answer.Loaded.Errors) > 0:
		return fault.WithHint(node.NewNodeError(strings.Join(answer.Loaded.Errors, "; ")),
			"use a wheel of this package that was built for these nodes and their torch, or install what it needs on the node")
	}
	for _, note := range answer.Loaded.Notes {
		n.Warn("%v", node.NewNodeError(note))
	}
	return nil
}

// loadError adds to err the op that the program was loading, or computing with, when it ended. An illegal
// instruction means that the wheel needs a newer CPU.
func loadError(err error, doing, op, needs, has string) error {
	var exit *remote.ExitError
	// All of them come from the node.
	op, needs, has = node.QuotePath(op), node.PlainVersion(needs), node.PlainVersion(has)
	if errors.As(err, &exit) && (exit.Signal == "ILL" || exit.Code == 128+4) {
		return fault.WithHint(fmt.Errorf("op %s: killed by an illegal instruction", op),
			"the wheel (%s) needs a newer CPU than this node's (%s)", cmp.Or(needs, "unknown CPU level"), has)
	}
	return fmt.Errorf("%s op %s: %w", doing, op, err)
}

// forCUDA reports whether DeepSpeed finds all ops of a wheel only with the accelerator "cuda".
func forCUDA(m wheel.Manifest) bool { return m.CUDA != "" || m.TorchABI.IsStable() }

// acceleratorEnv returns the variable to set on a node without a usable GPU when the ops are for
// CUDA: DeepSpeed would otherwise choose the accelerator "cpu" there, for which it lacks some ops.
func acceleratorEnv(forCUDA bool, f node.Facts) map[string]string {
	if forCUDA && (len(f.GPUs) == 0 || f.GPUsHidden) {
		return map[string]string{"DS_ACCELERATOR": "cuda"}
	}
	return nil
}
