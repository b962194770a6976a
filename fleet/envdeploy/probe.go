package envdeploy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/private"
)

// nodeState is one node on its way to an environment.
type nodeState struct {
	*fleet.Node
	index int // in the inventory
	run   *Deploy

	brought   *nodePython       // set if the lock has a Python
	inside    *node.Facts       // with the Python of the environment, once it is verified
	state     *EnvironmentState // before the change
	processes node.Processes    // of the current environment
	plan      *NodePlan
	files     *environmentFiles // the files of the environment, once they were compared
	now       *Environment
	begun     begun // the agent's first answer
	differs   []string
}

// EnvironmentState is the state of a node's environments.
type EnvironmentState struct {
	Last     *node.LastChange `json:"last"`     // the last change of Current, if any
	Current  *Environment     `json:"current"`  // nil: none
	Previous *Environment     `json:"previous"` // the environment that a rollback restores, if any
	Ready    []string         `json:"ready"`    // digests of whole environments
	Have     []string         `json:"have"`     // sha256 of files that need not be sent
	Free     int64            `json:"free"`
	Writable bool             `json:"writable"`

	Leftovers  bool   `json:"leftovers"`   // of a run that was cut off
	Place      string `json:"place"`       // the folder of the environments of this name
	FileSystem string `json:"file_system"` // its type
	Seen       string `json:"seen"`        // seen_by_node of SeenAt
	SeenAt     string `json:"seen_at"`     // Place, or the nearest directory above it that exists
}

// Environment is an environment on a node.
type Environment struct {
	Name      string          `json:"name"` // of its folder
	Digest    string          `json:"digest"`
	Python    string          `json:"python"`
	DeepSpeed *report.Version `json:"deepspeed"`
}

var lookProgram = node.NewFollowUp(node.NewProgram("list_environments"))

// environmentRef names the environment for the programs on nodes.
type environmentRef struct {
	Folder string `json:"folder"` // "": the user's own
	Name   string `json:"name"`
	Safe   string `json:"safe"` // the script of package private
}

// where names the environment for programs on the node.
func (d *Deploy) where() environmentRef {
	return environmentRef{d.opt.Lock.Folder, d.opt.Lock.Name, private.Script()}
}

// probe connects to every node, and gathers its facts and the state of its environments.
func (d *Deploy) probe(ctx context.Context) ([]ProbeResult, error) {
	err := d.Fleet.Probe(ctx, change.ProbeLimit, func(ctx context.Context, i int) error { return d.nodes[i].probe(ctx) })
	if err != nil {
		return nil, err
	}
	known := make([]ProbeResult, len(d.nodes))
	for i, n := range d.nodes {
		known[i] = ProbeResult{
			Name: n.Host.Name, Facts: n.Facts, State: n.state, Processes: n.processes, Python: n.brought, Err: n.Err,
		}
	}
	return known, nil
}

// lookRequest is the request of list_environments.py.
type lookRequest struct {
	environmentRef
	Digests []string          `json:"digests"`
	Files   []change.Expected `json:"files"`
}

// probe gathers the node's facts and looks at its environments, in one command; a second one asks
// which processes use the current environment, if it may be changed.
func (n *nodeState) probe(ctx context.Context) error {
	req := lookRequest{environmentRef: n.run.where(), Digests: []string{}, Files: []change.Expected{}}
	for i := range n.run.opt.Lock.Sets {
		req.Digests = append(req.Digests, n.run.opt.Lock.Sets[i].Digest)
		req.Files = append(req.Files, refs(&n.run.opt.Lock.Sets[i])...)
	}
	var got *EnvironmentState
	program := n.run.opt.Lock.Program()
	if n.run.opt.Lock.BundlesPython() {
		var err error
		if n.brought, err = n.findPython(ctx); err != nil {
			return err
		}
		program = cmp.Or(n.brought.use, "python3")
	}
	look := node.FollowUp{Program: lookProgram, Request: req, Each: func(m json.RawMessage) error {
		var said struct {
			Looked *EnvironmentState `json:"looked"`
			Unsafe string            `json:"unsafe"`
		}
		if err := node.Decode(m, &said); err != nil {
			return err
		}
		got = said.Looked
		return n.refuseUnsafe(said.Unsafe)
	}}
	facts, undone, err := node.ProbeWithFollowUp(ctx, n.Runner, program, look)
	switch {
	case err != nil || undone != nil:
		return cmp.Or(err, undone)
	case facts.MissingPython() != "" && n.brought != nil:
		n.Facts, n.state = facts, n.brought.looked(n.run.opt.Lock.Name)
		return nil
	case facts.MissingPython() != "":
		n.Facts, n.state = facts, &EnvironmentState{}
		return nil
	case got == nil:
		return errors.New("no list of environments from the node")
	}
	n.Facts, n.state, n.now = facts, got, got.Current
	if facts.Elsewhere {
		n.state.SeenAt = facts.SitePackages // of the interpreter
	} else if !n.run.onlyVerify && !node.SeesFolder(ctx, n.Runner, got.SeenAt, got.Seen) {
		n.Facts.Elsewhere, n.state.Writable = true, false
	}
	if got.Current != nil {
		n.JobsOf = got.Current.Python
	}
	if n.run.onlyVerify || got.Current == nil || got.Current.Digest == n.wanted() && !n.run.opt.Force && !n.run.goesBack {
		return nil
	}
	n.processes, err = node.FindProcesses(ctx, n.Runner, got.Current.Python)
	switch {
	case err != nil && n.run.opt.InUse.Ignore:
		n.Warn(change.CannotTell+"; changing it anyway: %v", err)
	case err != nil:
		err = fmt.Errorf(change.CannotTell+": %w", err)
		return fault.WithHint(err, "pass --in-use ignore if its Python no longer exists: no new job can use it")
	}
	return nil
}

// refuseUnsafe is the error if another user could change the environments, in the node's words.
func (n *nodeState) refuseUnsafe(why string) error {
	if why == "" {
		return nil
	}
	return node.WithAdvice(node.NewNodeError(why), "unsafe-place", n.Host.Python, n.Facts)
}

// wanted is the digest of the environment that the node should have, or "".
func (n *nodeState) wanted() string {
	set, err := n.run.opt.Lock.For(*n.Facts)
	if err != nil {
		return ""
	}
	return set.Digest
}
