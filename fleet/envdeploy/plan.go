package envdeploy

import (
	"cmp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// NodePlan is the action on one node.
type NodePlan struct {
	change.Decision
	Set    *environment.Set // the files for the node; may be nil
	Ready  bool             // the node has the environment already: only the link changes
	Send   []environment.File
	Python bool   // send the Python of the set
	Back   string // the digest of the environment that a rollback restores
}

// Size is the number of bytes to send.
func (p NodePlan) Size() int64 {
	var n int64
	for _, f := range p.Files() {
		n += f.Size
	}
	return n
}

// Files lists the files to send, the Python that comes along among them.
func (p NodePlan) Files() []environment.File {
	if !p.Python {
		return p.Send
	}
	all := p.Set.All()
	return append([]environment.File{all[len(all)-1]}, p.Send...)
}

// Plan lists the actions, in inventory order.
type Plan struct {
	change.Decisions
	Nodes  []NodePlan // Decisions are their common parts
	Undone *node.Run  // the run that a rollback undoes, if any
}

// newPlan returns a plan in which a node that was not probed is absent; decide decides the others.
func newPlan(nodes []ProbeResult, decide func(i int, p *NodePlan)) Plan {
	plan := Plan{Nodes: make([]NodePlan, len(nodes))}
	for i, n := range nodes {
		p := &plan.Nodes[i]
		p.Name, p.Leader = n.Name, i
		plan.Decisions = append(plan.Decisions, &p.Decision)
		switch {
		case n.Err != nil:
			p.SetAbsent(n.Err)
		case n.Facts.Elsewhere:
			folder := node.QuotePath(n.State.SeenAt)
			p.refuse(fault.SetInterpreter("a Python in the node's own file system").String(),
				"Python runs in another file system, as a container does: its "+folder+" is not the node's")
		case n.Facts.RunsAs != "":
			why, hint := n.Facts.OtherAccount()
			p.refuse(hint, why)
		default:
			decide(i, p)
		}
	}
	return plan
}

// agree applies what nodes need that share the folder of their environments: another environment, or the current one,
// which they use.
func (p *Plan) agree(nodes []ProbeResult, policy change.InUse) {
	p.applyInUse(nodes, policy)
	p.refuseMixedFolders(nodes)
}

// refuse makes a plan that sends nothing.
func (p *NodePlan) refuse(hint string, why ...string) {
	p.SetRefused(hint)
	p.Reasons, p.Send, p.Python = why, nil, false
}

// ProbeResult is the result of the survey for one node.
type ProbeResult struct {
	Name      string
	Facts     *node.Facts // nil if it could not be probed
	State     *EnvironmentState
	Processes node.Processes // of the current environment
	Python    *nodePython    // set if the lock has a Python
	Shares    string         // equal on nodes that share the folder of the environments; empty if not known
	Err       error
}

// PlanOptions are the settings of planNodes.
type PlanOptions struct {
	Lock      *environment.Lock
	Wheels    map[string]*wheel.Loaded  // the wheel of DeepSpeed by its sha256
	Manifests map[string]wheel.Manifest // as in Files
	Unpacked  map[string]int64          // bytes that each file needs once it is installed, by its sha256
	Force     bool
	InUse     change.InUse
}

// planNodes decides the action on each node by itself. It is pure.
func planNodes(nodes []ProbeResult, opt PlanOptions) (Plan, error) {
	tables, err := compat.NewTables()
	if err != nil {
		return Plan{}, err
	}
	return newPlan(nodes, func(i int, p *NodePlan) { p.decide(tables, nodes[i], opt) }), nil
}

// mixedHint is the hint where nodes with one folder need several environments.
const mixedHint = "lock and deploy each node type separately (--limit), " +
	"each with a separate environment file that sets another folder:"

// refuseMixedFolders refuses nodes that share the folder with a node that needs another environment, such as nodes of
// two machine types with one home directory: the link current leads to one environment.
func (p *Plan) refuseMixedFolders(nodes []ProbeResult) {
	first, mixed := map[string]*NodePlan{}, map[string]*NodePlan{} // by folder: two nodes with different sets
	for i, n := range nodes {
		plan, folder := &p.Nodes[i], n.Shares
		switch {
		case folder == "" || plan.Action != change.Install && plan.Action != change.UpToDate:
		case first[folder] == nil:
			first[folder] = plan
		case first[folder].Set.Digest != plan.Set.Digest && mixed[folder] == nil:
			mixed[folder] = plan
		}
	}
	for i, n := range nodes {
		plan, other := &p.Nodes[i], first[n.Shares]
		if mixed[n.Shares] == nil || plan.Action != change.Install {
			continue
		}
		if other.Set.Digest == plan.Set.Digest {
			other = mixed[n.Shares]
		}
		plan.SetRefused(mixedHint, nodeerr.Messagef(
			"shares the environments' directory with %s, which needs a different environment",
			nodeerr.Own(other.Name)))
		plan.Send, plan.Python = nil, false
	}
}

// decide decides the action on a node that was probed.
func (p *NodePlan) decide(tables *compat.Tables, n ProbeResult, opt PlanOptions) {
	set, err := opt.Lock.For(*n.Facts)
	switch {
	case n.Facts.MissingPython() != "" && (err != nil || set.Python == nil):
		p.refuse(pythonHint(opt.Lock, *n.Facts), n.Facts.NoPython())
		return
	case err != nil:
		p.refuse(fault.Hint(err), err.Error())
		return
	case !n.State.Writable:
		p.refuse(fault.SetFolder("a directory that this user can write").String(),
			"no write permission for "+node.QuotePath(n.State.Place))
		return
	}
	p.Set = set
	reasons, notes, try := fit(tables, set, *n.Facts, opt)
	if len(reasons) > 0 {
		p.Unfit = true
		p.refuse(try, reasons...)
		return
	}
	p.Notes = notes
	if n.State.Current != nil && n.State.Current.Digest == set.Digest && !opt.Force {
		p.Action = change.UpToDate
		return
	}
	p.Action, p.Ready = change.Install, slices.Contains(n.State.Ready, set.Digest) && !opt.Force
	p.Python = set.Python != nil && (opt.Force || !n.Python.has(refOf(set)))
	if !p.Ready || p.Python {
		p.send(n.State, opt)
	}
}

// pythonHint is the hint for a node without the Python of the environment.
func pythonHint(lock *environment.Lock, f node.Facts) string {
	return f.PythonHint("install Python " + lock.Python + " on the node, or " +
		fault.SetInterpreter("a Python on the node or an archive to bundle").String())
}

// roomMargin is the free space that the installer and its notes need.
const roomMargin = 64 << 20

// send lists the files that the node lacks, and refuses a node without the room for them.
func (p *NodePlan) send(state *EnvironmentState, opt PlanOptions) {
	need := int64(roomMargin)
	// The largest wheels first: the node installs them while the others arrive.
	files := slices.SortedStableFunc(slices.Values(p.Set.Files), func(a, b environment.File) int {
		return cmp.Compare(b.Size, a.Size)
	})
	for _, f := range append([]environment.File{p.Set.Installer}, files...) {
		if slices.Contains(state.Have, f.SHA256) {
			continue
		}
		p.Send = append(p.Send, f)
		need += f.Size + opt.Unpacked[f.SHA256]
	}
	if p.Python {
		need += p.Set.Python.Size + opt.Unpacked[p.Set.Python.SHA256]
	}
	if p.Ready {
		p.Send = nil
	}
	if state.Free < need {
		p.Send, p.Python = nil, false
		p.SetRefused("free disk space, or "+fault.SetFolder("a directory on another file system").String(),
			nodeerr.Messagef("not enough space in %s: %s free, %s needed",
				node.QuotePath(state.Place), nodeerr.Own(ui.Size(state.Free)), ui.Size(need)))
	}
}

// fit returns the reasons why packages of the set do not run on a node once the set's Python and torch are there, and
// notes on those that run.
func fit(tables *compat.Tables, set *environment.Set, f node.Facts, opt PlanOptions) (reasons, notes []string, try string) {
	if version := opt.Lock.Python; set.Python != nil {
		f.Python, f.Tag = version+".0", "cp"+strings.ReplaceAll(version, ".", "")
		f.Missing = slices.DeleteFunc(slices.Clone(f.Missing), func(m string) bool { return strings.HasPrefix(m, "python") })
	}
	for _, file := range set.Files {
		if w := opt.Wheels[file.SHA256]; w != nil {
			v := tables.FitTorch(w.Manifest, f, set.Torch())
			reasons, try = append(reasons, v.Reasons...), cmp.Or(v.Hint(), try)
			continue
		}
		m, ok := opt.Manifests[file.SHA256+set.Machine]
		if !ok {
			continue
		}
		v := tables.FitTorch(m, f, set.Torch())
		prefix := func(text string) string { return file.Name + " " + file.Version + ": " + text }
		reasons, notes = append(reasons, lists.Map(v.Reasons, prefix)...), append(notes, lists.Map(v.Notes, prefix)...)
		try = cmp.Or(try, v.Hint())
	}
	return reasons, notes, try
}

// applyInUse applies the policy for environments that processes use: a job would load the modules of the new one
// through the link. Where nodes have the folder of the environments in common, such as a shared home, a job on any
// of them uses the current environment.
func (p *Plan) applyInUse(nodes []ProbeResult, policy change.InUse) {
	users := map[string]*ProbeResult{} // by folder: the first node with processes
	for i, n := range nodes {
		if n.Shares != "" && len(n.Processes.InUse) > 0 && users[n.Shares] == nil {
			users[n.Shares] = &nodes[i]
		}
	}
	for i, n := range nodes {
		plan := &p.Nodes[i]
		if plan.Action != change.Install && plan.Action != change.Rollback {
			continue
		}
		if unknown := n.Processes.Why(); unknown != "" {
			plan.Notes = append(plan.Notes, change.CannotTell+": "+unknown)
		}
		other, outside := users[n.Shares], plan.UseOutside()
		switch what := change.DescribeProcesses(n.Processes); {
		case what.Text != "":
			plan.ApplyInUse(what, policy)
		case other == nil && outside.Text == "":
			continue
		case other == nil:
			plan.ApplyInUse(outside, policy)
		default:
			what = nodeerr.Messagef("shares the environments' directory with %s: %s",
				nodeerr.Own(other.Name), change.DescribeProcesses(other.Processes))
			if policy.Wait > 0 && !policy.Ignore { // dsbuild asks a node again only about its own processes
				plan.SetRefused("wait for these processes to exit, then rerun", what)
			} else {
				plan.ApplyInUse(what, policy)
			}
		}
		if plan.Action == change.Refuse {
			plan.Send, plan.Python = nil, false
		}
	}
}
