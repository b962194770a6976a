package deploy

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// elsewhereHint is for a python: that runs in a container: files that dsbuild sends do not arrive there.
func elsewhereHint() string {
	return fault.Set("python", "an interpreter in the node's own file system").String() +
		"; install the wheel in an image when you build the image"
}

// environmentFaults returns the reasons why dsbuild cannot change an environment at all, and a hint.
func environmentFaults(n ProbeResult) (reasons []nodeerr.Message, hint string) {
	f := n.Facts
	if f.Elsewhere {
		const format = "%s runs Python in another file system, as a container does: its %s (sys.prefix %s) is not the node's"
		program, site, prefix := node.QuotePath(n.Python), node.QuotePath(f.SitePackages), node.QuotePath(f.Prefix)
		return []nodeerr.Message{{Text: fmt.Sprintf(format, program, site, prefix)}}, elsewhereHint()
	}
	if why, try := f.Unusable(); why.Text != "" {
		return []nodeerr.Message{why}, try
	}
	switch {
	case f.Unreadable: // then nothing in it is known
		why, try := f.NoPermission()
		return []nodeerr.Message{why}, try
	// After an interrupted change the RECORD may be missing: the agent repairs that first.
	case len(f.NoRecord) > 0 && !f.Unfinished:
		const without = "installed DeepSpeed has no RECORD, which a rollback needs: "
		for _, path := range f.NoRecord[:min(len(f.NoRecord), 3)] {
			reasons = append(reasons, nodeerr.Messagef(without+"%s", nodeerr.Own(node.QuotePath(path))))
		}
		return reasons, node.HintFor("remove-deepspeed", n.Python, f.SitePackages)
	case f.ForeignOwner != "":
		owner, prefix, name := node.QuotePath(f.ForeignOwner), node.QuotePath(f.Prefix), node.PlainPath(f.ForeignOwner, "OWNER")
		return []nodeerr.Message{{Text: fmt.Sprintf("environment %s is in %s's hands, who could redirect what root changes there", prefix, owner)}},
			fault.Set("user", name).String() + ", or " + fault.Set("sudo", name).String()
	}
	return nil, ""
}

// noPermission returns the reason why the node itself must not change its environment, and a hint. Another node that
// shares it may.
func noPermission(f node.Facts) (reason nodeerr.Message, hint string) {
	switch {
	case f.ReadOnly:
		return nodeerr.Message{Text: "environment is on a read-only file system: " + node.QuotePath(f.SitePackages)},
			"remount it read-write, and check for disk errors: dmesg"
	case f.HomeOwner != "" && (f.Locked == "" || f.LockedBy != ""):
		home, owner := node.QuotePath(f.Home()), node.QuotePath(f.HomeOwner)
		return nodeerr.Message{Text: fmt.Sprintf("no write permission for %s, owned by %s", home, owner)},
			fault.Set("user", "that user").String() + "; or chown -R the directory to the environment's owner"
	}
	return f.NoPermission()
}

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

// roomFactor and roomMargin give the free space that a wheel needs: the upload, the unpacked
// files and their byte code. The old version, moved aside, already has its space.
const (
	roomFactor = 4
	roomMargin = 32 << 20
)

// neededRoom returns the free space that wheels of size bytes need.
func neededRoom(size int64) int64 { return roomFactor*size + roomMargin }

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
	if reason, try := foreignCommands(w, extra, f); reason != "" {
		reasons, hint = append(reasons, nodeerr.Message{Text: reason}), cmp.Or(hint, try)
	}
	if full, try := checkDisk(f, w.Manifest.Size+extraSize(extra)); full.Text != "" {
		reasons, hint = append(reasons, full), cmp.Or(hint, try)
	}
	return reasons, hint
}

// foreignCommands returns a reason and a hint if commands of the wheels would replace those of
// another package, or files of no package.
func foreignCommands(w wheel.Loaded, extra []wheel.BundleWheel, f node.Facts) (reason, hint string) {
	var reasons []string
	hint = "move them aside on the node, or build a wheel without them"
	check := func(name, of string) {
		switch owner, taken := f.Taken[name]; {
		case taken && owner == of:
		case strings.HasPrefix(owner, "/"):
			reasons = append(reasons, fmt.Sprintf("%s belongs to the Python of %s", name, node.QuotePath(owner)))
			hint = node.HintFor("another-python", f.Executable, f.SitePackages)
		case taken && owner != "":
			reasons = append(reasons, fmt.Sprintf("%s belongs to %s", name, cmp.Or(node.PlainVersion(owner), "another package")))
		case taken && !f.Unfinished: // else it may be DeepSpeed's own, whose RECORD an interrupted change lost
			reasons = append(reasons, name+" belongs to no package")
		}
	}
	for _, name := range w.Commands {
		check(name, "deepspeed")
	}
	for _, a := range extra {
		for _, name := range a.Commands {
			check(name, a.Name)
		}
	}
	if len(reasons) == 0 {
		return "", ""
	}
	return "wheel would overwrite existing commands: " + strings.Join(reasons, ", "), hint
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
	python, install := node.PlainPath(f.Executable, "python"), strings.Join(names, " ")
	command := python + " -m pip install " + install
	if f.Pip == "" {
		command = "uv pip install --python " + python + " " + install
	}
	return reason, fmt.Sprintf("install them on the node: %s; or from a wheelhouse: %s", command, fault.Deploy("--deps", "bundle"))
}

// checkDisk returns a reason and a hint if the disk of the environment, or of dsbuild's own directory, is too full
// for size bytes of wheels.
func checkDisk(f node.Facts, size int64) (reason nodeerr.Message, hint string) {
	need := neededRoom(size)
	for _, place := range []struct {
		dir  string
		free int64
	}{{f.SitePackages, f.FreeBytes}, {f.Home(), f.FreeTmpBytes}} {
		if place.free < need {
			dir, free := node.QuotePath(place.dir), nodeerr.Own(ui.Size(place.free))
			return nodeerr.Messagef("not enough space in %s: %s free, %s needed", dir, free, ui.Size(need)),
				"free disk space: df -h " + node.PlainPath(place.dir, "ENVIRONMENT")
		}
	}
	return nodeerr.Message{}, ""
}
