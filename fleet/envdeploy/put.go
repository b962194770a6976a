package envdeploy

import (
	"context"
	"errors"
	"slices"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/internal/fault"
)

// begun is the first answer of the agent.
type begun struct {
	change.BeginReply
	Have    []string     `json:"have"` // the sha256 of files that the node keeps
	Current *Environment `json:"current"`
	Before  *Environment `json:"before"` // the environment that a rollback restores
	Old     []string     `json:"old"`    // the names of environments that no link needs
}

// request is the part of the agent's first input that only this agent has.
type request struct {
	environmentRef
	Python *pythonRef `json:"python"` // of the new environment, if one came along
}

var agentProgram = node.NewProgram("environments")

// agent is the program that holds the lock of the environments and changes them.
func (n *nodeState) agent() node.Script {
	req := request{environmentRef: n.run.where()}
	if n.plan.Action == change.Install {
		req.Python = refOf(n.plan.Set)
	}
	return node.Script{Python: n.interpreter(), Program: agentProgram, Request: req}
}

// lock starts the agent, which expects files.
func (n *nodeState) lock(ctx context.Context, files []change.Expected, again bool) (b begun, err error) {
	if err = n.run.Lock(ctx, n.Node, n.agent(), files, again, &b); err == nil {
		n.now, n.begun = b.Current, b
	}
	return b, err
}

// tidy takes the lock: the agent then removes what an interrupted run has left.
func (n *nodeState) tidy(ctx context.Context) error {
	_, err := n.lock(ctx, nil, false)
	return err
}

// refs lists the files of a set, the installer first.
func refs(s *environment.Set) []change.Expected {
	all := []change.Expected{{Name: s.Installer.File, SHA256: s.Installer.SHA256}}
	for _, f := range s.Files {
		all = append(all, refTo(f))
	}
	return all
}

func refTo(f environment.File) change.Expected {
	return change.Expected{Name: f.File, SHA256: f.SHA256, Package: f.Name, Version: f.Version}
}

// local is a file of the lock on this machine.
func (d *Deploy) local(sha256 string, size int64) fleet.LocalFile {
	return fleet.LocalFile{Path: d.opt.Files.Paths[sha256], SHA256: sha256, Size: size}
}

// uploads returns the files to send to a node that installs.
func (n *nodeState) uploads() []change.Upload {
	var files []change.Upload
	if n.plan.Python {
		python := n.plan.Set.Python
		// Until it arrives, another Python must run the program of a relay. An existing one may be replaced meanwhile.
		relays := n.brought != nil && n.brought.use != "" && !n.brought.has(refOf(n.plan.Set))
		files = append(files, change.Upload{LocalFile: n.run.local(python.SHA256, python.Size), NoRelay: !relays})
	}
	for _, f := range n.plan.Send {
		files = append(files, change.Upload{LocalFile: n.run.local(f.SHA256, f.Size)})
	}
	return files
}

// largeFile is the size in bytes from which a node installs a wheel on arrival.
const largeFile = 16 << 20

// put starts the agent, and sends the files that the node lacks and that it stores.
func (n *nodeState) put(ctx context.Context, again bool) error {
	set := n.plan.Set
	b, err := n.lock(ctx, refs(set), again)
	if err != nil {
		return err
	}
	if b.Current != nil && b.Current.Digest == set.Digest && !n.run.opt.Force {
		n.Release() // another node that shares the folder has switched meanwhile, or another run
		return nil
	}
	if b.Current != nil && b.Run == n.run.Fleet.Run && b.Current.Digest != set.Digest {
		err := errors.New("another node that shares the directory deployed a different environment there")
		return fault.WithHint(err, mixedHint)
	}
	for _, f := range n.plan.Send {
		stored := slices.Contains(b.Have, f.SHA256)
		if err := n.run.Put(ctx, n.Node, n.run.local(f.SHA256, f.Size), stored, b.BeginReply); err != nil {
			return err
		}
		if stored {
			continue
		}
		// The node installs a large wheel while the next files arrive.
		err := change.Call(ctx, n.Node, agent.Request{
			"do": "store", "file": refTo(f), "early": f.Size >= largeFile && f.SHA256 != set.Installer.SHA256,
			"digest": set.Digest, "installer": refTo(set.Installer),
			"limit_s": n.run.Fleet.Limit(change.InstallLimit).Seconds(),
		}, nil)
		if err != nil {
			return err
		}
	}
	return nil
}
