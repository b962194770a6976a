package launch

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// view is the data of a template: a job, its derived values, and the file or node
// that is rendered.
type view struct {
	*Job
	File string

	// Of a node's block:
	Main string // the script that it runs
	Rank int
	Host inventory.Host
}

// shape describes the size of the job.
func (v view) shape() string {
	nodes := ui.Count(v.Nodes.Max, "node")
	if v.Nodes.Elastic() {
		nodes = fmt.Sprintf("%d to %d nodes", v.Nodes.Min, v.Nodes.Max)
	}
	each := ""
	if v.Nodes.Max > 1 {
		each = " each"
	}
	if v.GPUs == 0 {
		return fmt.Sprintf("%s with %s%s", nodes, ui.Count(v.Procs, "process"), each)
	}
	return fmt.Sprintf("%s with %s%s", nodes, ui.Count(v.GPUs, "GPU"), each)
}

// gpusOf returns the number of GPUs of a node of the inventory.
func (v view) gpusOf(h inventory.Host) int {
	if v.Slots {
		return h.Slots
	}
	return v.GPUs
}

// rdzvConf is torchrun's --rdzv-conf: the time limit for the nodes to meet.
func (v view) rdzvConf() string {
	if v.c10d() {
		return fmt.Sprintf("join_timeout=%d", v.JoinTimeout)
	}
	return fmt.Sprintf("timeout=%d", v.JoinTimeout)
}

// startWait describes the framework's timeout for all nodes to join. The defaults are
// torch's (LaunchConfig; c10d's join_timeout) and JAX's (initialization_timeout).
func (v view) startWait() string {
	who, seconds := "torch's timeout", 900
	switch {
	case v.Kind == JAX:
		who, seconds = "JAX's timeout", 300
	case v.c10d():
		seconds = 600
	}
	return fmt.Sprintf("%s (%d s)", who, cmp.Or(v.JoinTimeout, seconds))
}

// warning is the signal that Slurm sends before the time limit.
type warning struct {
	Signal  string // as a trap writes it
	ToShell bool   // to the batch script only, not to the program
	Given   bool   // by the user's --signal
}

// signalOption matches sbatch's --signal: R: of a reservation, B: to the batch script, both, or neither.
var signalOption = regexp.MustCompile(`^--signal=(?i:([RB]{1,2}):)?([A-Za-z0-9+-]{1,12})(?:@[0-9]{1,5})?$`)

// warning returns the signal before the time limit: the user's, or USR1, on which --requeue depends.
func (j *Job) warning() warning {
	for _, option := range j.Sbatch {
		if m := signalOption.FindStringSubmatch(option); m != nil {
			return warning{Signal: m[2], ToShell: strings.ContainsAny(m[1], "Bb"), Given: true}
		}
	}
	return warning{Signal: "USR1", ToShell: true}
}

// mountsCode reports whether the containers find the program in the directory from which
// they are started.
func (v view) mountsCode() bool {
	return v.WorkDir == "" && !path.IsAbs(v.Script) && !strings.HasPrefix(path.Clean(v.Script), "..")
}

// codeMark is the program's entry in that directory: its file, or the first part of its
// module without .py.
func (v view) codeMark() string {
	if !v.Module {
		return v.Script
	}
	first, _, _ := strings.Cut(v.Script, ".")
	return first
}

// fixedRestarts is the number of restarts of a fixed-size job.
func (v view) fixedRestarts() int {
	if v.fixed() {
		return v.MaxRestarts
	}
	return 0
}

// hostVars are the names of all variables in the inventory.
func (v view) hostVars() []string {
	all := map[string]bool{}
	for _, h := range v.Hosts {
		for name := range h.Env {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// dockerMount is a mount as docker writes it.
func (m Mount) dockerMount() string {
	kind := "volume"
	if path.IsAbs(m.Source) {
		kind = "bind"
	}
	out := fmt.Sprintf("type=%s,source=%s,target=%s", kind, m.Source, m.Target)
	if m.ReadOnly {
		out += ",readonly"
	}
	return out
}

// pyxisMount is a mount as pyxis and apptainer write it.
func (m Mount) pyxisMount() string {
	out := m.Source + ":" + m.Target
	if m.ReadOnly {
		out += ":ro"
	}
	return out
}
