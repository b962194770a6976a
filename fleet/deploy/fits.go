package deploy

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/wheel"
)

// missingTorchOrPip returns the reasons why an environment cannot take any wheel, and a hint.
func missingTorchOrPip(f node.Facts, opt PlanOptions) (reasons []nodeerr.Message, hint string) {
	if why, try := f.NoTorch(); why.Text != "" {
		return []nodeerr.Message{why}, try
	}
	if err := opt.NoPip[wheel.Minor(f.Python)]; err != nil && f.Pip == "" && f.PipWheel == "" {
		return []nodeerr.Message{{Text: fmt.Sprintf("no pip in the environment, and cannot get one to send: %v", err)}},
			"install pip into the environment"
	}
	return nil, ""
}

// installObstacles returns the reasons why an environment cannot take a wheel that fits it: missing
// requirements, foreign commands or a full disk.
func installObstacles(
	w wheel.Loaded, f node.Facts, extra []wheel.BundleWheel, lacks []missing, err error, opt PlanOptions,
) (reasons []nodeerr.Message, hint string) {
	switch {
	case err != nil:
		reasons, hint = append(reasons, nodeerr.From(err)), "rebuild the wheel: its METADATA is invalid"
	case len(lacks) > 0:
		var reason string
		reason, hint = shortage(lacks, f, opt)
		reasons = append(reasons, nodeerr.Message{Text: reason})
	}
	commands := map[string]string{}
	for _, name := range w.Commands {
		commands[name] = "deepspeed"
	}
	for _, a := range extra {
		for _, name := range a.Commands {
			commands[name] = a.Name
		}
	}
	if foreign, try := f.ForeignCommands(commands); foreign.Text != "" {
		reasons, hint = append(reasons, foreign), cmp.Or(hint, try)
	}
	if full, try := f.NoRoom(w.Manifest.Size + extraSize(extra)); full.Text != "" {
		reasons, hint = append(reasons, full), cmp.Or(hint, try)
	}
	return reasons, hint
}

// shortage returns the reason that lists the missing requirements, and a hint.
func shortage(lacks []missing, f node.Facts, opt PlanOptions) (reason, hint string) {
	list := strings.Join(reasonsOf(lacks), ", ")
	names := lists.Map(lacks, func(l missing) string { return "'" + l.requirement + "'" })
	reason = "missing requirements: " + list
	if opt.Bundle != nil {
		reason = "missing requirements not met by the wheelhouse: " + list
		if python := wheel.Minor(f.Python); opt.Bundle.Python != python {
			const another = "build a wheelhouse for the node (this one is for Python %s, the node has %s): dsbuild wheel --bundle --python %s"
			return reason, fmt.Sprintf(another, opt.Bundle.Python, f.Python, python)
		}
		return reason, "rebuild the wheelhouse: dsbuild wheel --bundle"
	}
	python, install := node.PlainPath(f.Executable, "PYTHON"), strings.Join(names, " ")
	command := python + " -m pip install " + install
	if f.Pip == "" {
		command = "uv pip install --python " + python + " " + install
	}
	return reason, fmt.Sprintf("install them on the node: %s; or from a wheelhouse: %s", command, fault.Deploy("--deps", "bundle"))
}
