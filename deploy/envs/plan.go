package envs

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/deploy"
	"github.com/dsbuild/dsbuild/deploy/wheels"
	"github.com/dsbuild/dsbuild/environment"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/node"
)

// NodePlan is the action on one node.
type NodePlan struct {
	Name    string
	Action  deploy.Action
	Set     *environment.Set // the files for the node; nil if none serves it
	Ready   bool             // the node has the environment already: only the link changes
	Send    []environment.File
	Python  bool     // bring the Python of the set
	Reasons []string // for a refusal or an absence
	Unfit   bool     // refused because the wheel of DeepSpeed does not fit it
	Remarks []string
	Hint    string

	Serial int // the group of --serial that changes it, from 1; 0: none

	cause string // Reasons without the node's own details
	waits bool   // wait until no process uses the current environment
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
type Plan struct{ Nodes []NodePlan }

// ProbeResult is the result of the survey for one node.
type ProbeResult struct {
	Name      string
	Facts     *node.Facts // nil if it could not be probed
	Look      *EnvironmentState
	Processes node.Processes // of the current environment
	Python    *nodePython    // set if the lock brings a Python along
	Err       error
}

// site is the folder of the environments as the node names it; "": not known.
func (n ProbeResult) site() string {
	if n.Err != nil || n.Look == nil {
		return ""
	}
	return n.Look.Site
}

// EnvironmentState is the state of a node's environments.
type EnvironmentState struct {
	Current  *InstalledEnvironment `json:"current"`  // nil: none
	Previous *InstalledEnvironment `json:"previous"` // the environment that a rollback restores; nil: none
	Ready    []string              `json:"ready"`    // digests of whole environments
	Have     []string              `json:"have"`     // sha256 of files that need not be sent
	Free     int64                 `json:"free"`
	Writable bool                  `json:"writable"`

	Leftovers bool   `json:"leftovers"` // of a run that was cut off
	Place     string `json:"place"`     // the folder of the environments of this name
	Site      string `json:"site"`      // equal on two nodes if they have this folder in common; "": not known
}

// InstalledEnvironment is an environment on a node.
type InstalledEnvironment struct {
	Name      string          `json:"name"` // of its folder
	Digest    string          `json:"digest"`
	Python    string          `json:"python"`
	DeepSpeed *report.Version `json:"deepspeed"`
}

// PlanOptions are the settings of NewPlan.
type PlanOptions struct {
	Lock     *environment.Lock
	Wheels   map[string]*wheels.Wheel // the wheel of DeepSpeed by its sha256
	Unpacked map[string]int64         // bytes that each file needs once it is installed, by its sha256
	Force    bool
	InUse    deploy.InUse
}

// NewPlan decides the action on each node. It is pure.
func NewPlan(nodes []ProbeResult, opt PlanOptions) (Plan, error) {
	tables, err := compat.NewTables()
	if err != nil {
		return Plan{}, err
	}
	plan := Plan{}
	for _, n := range nodes {
		p := NodePlan{Name: n.Name}
		if n.Err != nil {
			p.absent(n.Err)
		} else {
			p.decide(tables, n, opt)
		}
		plan.Nodes = append(plan.Nodes, p)
	}
	plan.applyInUseOfOthers(nodes, opt.InUse)
	return plan, nil
}

func (p *NodePlan) absent(err error) {
	m := cause.From(err)
	p.Action, p.Reasons, p.Hint, p.cause = deploy.Absent, []string{m.Text}, fault.Hint(err), m.Cause
}

// refuse makes a plan that sends nothing.
func (p *NodePlan) refuse(hint string, why ...string) {
	p.Action, p.Reasons, p.Hint = deploy.Refuse, why, hint
	p.Send, p.Python = nil, false
}

// refuseWithCause is refuse for a reason that holds the node's own details.
func (p *NodePlan) refuseWithCause(hint string, why cause.Message) {
	p.refuse(hint, why.Text)
	p.cause = why.Cause
}

// decide decides the action on a node that was probed.
func (p *NodePlan) decide(tables *compat.Tables, n ProbeResult, opt PlanOptions) {
	set, err := opt.Lock.For(*n.Facts)
	switch {
	case n.Facts.MissingPython() != "" && (err != nil || set.Python == nil):
		p.refuse("install Python "+opt.Lock.Python+" there, or set interpreter: in environment.yaml, also to the archive of a Python that comes along", "no usable Python: "+n.Facts.MissingPython()+" is missing")
		return
	case err != nil:
		p.refuse("lock for such nodes, too: dsbuild env lock environment.yaml --for INVENTORY; interpreter: names their Python", err.Error())
		return
	case !n.Look.Writable:
		p.refuse("set folder: in environment.yaml to a place where this user may write", "the user may not write into "+node.ShownPath(n.Look.Place))
		return
	}
	p.Set = set
	if reasons, try := unfit(tables, set, withPython(*n.Facts, set, opt.Lock.Python), opt.Wheels); len(reasons) > 0 {
		p.Unfit = true
		p.refuse(try, reasons...)
		return
	}
	if n.Look.Current != nil && n.Look.Current.Digest == set.Digest && !opt.Force {
		p.Action = deploy.UpToDate
		return
	}
	p.Action, p.Ready = deploy.Install, slices.Contains(n.Look.Ready, set.Digest) && !opt.Force
	p.Python = set.Python != nil && (opt.Force || !n.Python.has(refOf(set)))
	if !p.Ready || p.Python {
		p.send(n.Look, opt)
	}
	if p.Action == deploy.Install {
		p.applyInUse(deploy.DescribeProcesses(n.Processes), opt.InUse)
	}
}

// roomMargin is the free space that the installer and its notes need.
const roomMargin = 64 << 20

// send lists the files that the node lacks, and refuses a node without the room for them.
func (p *NodePlan) send(l *EnvironmentState, opt PlanOptions) {
	need := int64(roomMargin)
	// The largest wheels first: the node installs them while the others arrive.
	files := slices.SortedStableFunc(slices.Values(p.Set.Files), func(a, b environment.File) int { return cmp.Compare(b.Size, a.Size) })
	for _, f := range append([]environment.File{p.Set.Installer}, files...) {
		if slices.Contains(l.Have, f.SHA256) {
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
	if l.Free < need {
		p.refuseWithCause("make room there, or set folder: in environment.yaml",
			cause.Messagef("%s has %s free, %s are needed", node.ShownPath(l.Place), cause.Own(ui.Size(l.Free)), ui.Size(need)))
	}
}

// applyInUse applies the policy for an environment that processes use, as what describes: a job would load
// the modules of the new one through the link. An empty description means no processes.
func (p *NodePlan) applyInUse(what cause.Message, policy deploy.InUse) {
	switch {
	case what.Text == "":
	case policy.Ignore:
		p.Remarks = append(p.Remarks, what.Text)
	case policy.Wait > 0:
		p.Remarks, p.waits = append(p.Remarks, "waits up to "+ui.Duration(policy.Wait)+": "+what.Text), true
	default:
		p.refuseWithCause(deploy.InUseHint, what)
	}
}

// withPython are the facts of a node once the Python of the set has come along.
func withPython(f node.Facts, set *environment.Set, version string) node.Facts {
	if set.Python != nil {
		f.Python, f.Tag = version+".0", "cp"+strings.ReplaceAll(version, ".", "")
		f.Missing = slices.DeleteFunc(slices.Clone(f.Missing), func(m string) bool { return strings.HasPrefix(m, "python") })
	}
	return f
}

// unfit returns the reasons why the DeepSpeed of the set does not run on a node once the set's
// torch is there.
func unfit(tables *compat.Tables, set *environment.Set, f node.Facts, known map[string]*wheels.Wheel) (reasons []string, try string) {
	ds := set.File("deepspeed")
	if ds == nil || known[ds.SHA256] == nil {
		return nil, ""
	}
	m := known[ds.SHA256].Manifest
	f.TorchCUDA, f.CXX11ABI, f.Torch = m.CUDA, nil, ""
	if torch := set.File("torch"); torch != nil {
		f.Torch, _, _ = strings.Cut(torch.Version, "+")
	}
	v := tables.Fit(m, f)
	if v.OK() {
		return nil, ""
	}
	return v.Reasons, v.Hint()
}

// applyInUseOfOthers applies the policy for environments in a folder that nodes have in common, such as
// a shared home: a job on any of the nodes uses the current environment.
func (p *Plan) applyInUseOfOthers(nodes []ProbeResult, policy deploy.InUse) {
	users := map[string]*ProbeResult{} // by site: the first node with processes
	for i, n := range nodes {
		if n.Err == nil && n.Look.Site != "" && len(n.Processes.InUse) > 0 && users[n.Look.Site] == nil {
			users[n.Look.Site] = &nodes[i]
		}
	}
	for i, n := range nodes {
		plan := &p.Nodes[i]
		if plan.Action != deploy.Install && plan.Action != deploy.Rollback || len(n.Processes.InUse) > 0 || users[n.Look.Site] == nil {
			continue
		}
		other := users[n.Look.Site]
		what := cause.Messagef("its environments lie in a folder that it shares with %s, where %s", cause.Own(other.Name), deploy.DescribeProcesses(other.Processes))
		if policy.Wait > 0 && !policy.Ignore { // dsbuild asks a node again only about its own processes
			plan.refuseWithCause("wait until these processes have ended, and run the same command again", what)
			continue
		}
		plan.applyInUse(what, policy)
	}
}

// NewRollbackPlan decides which nodes go back to the environment before. It is pure.
func NewRollbackPlan(nodes []ProbeResult, policy deploy.InUse) Plan {
	plan := Plan{}
	for _, n := range nodes {
		p := NodePlan{Name: n.Name}
		switch {
		case n.Err != nil:
			p.absent(n.Err)
		case n.Facts.MissingPython() != "" && n.Look.Previous == nil:
			p.refuse("set interpreter: in environment.yaml", "no usable Python: "+n.Facts.MissingPython()+" is missing")
		case n.Look.Previous == nil:
			p.refuse("a node keeps only the environment before the last switch", "there is nothing to go back to")
		default:
			p.Action = deploy.Rollback
			p.applyInUse(deploy.DescribeProcesses(n.Processes), policy)
		}
		plan.Nodes = append(plan.Nodes, p)
	}
	plan.applyInUseOfOthers(nodes, policy)
	return plan
}

// Left lists the nodes that the plan leaves as they are: refused, or not reached.
func (p Plan) Left() []report.LeftNode {
	var left []report.LeftNode
	for _, n := range p.Nodes {
		if n.Action == deploy.Refuse || n.Action == deploy.Absent {
			left = append(left, report.LeftNode{Name: n.Name, Unfit: n.Unfit, Hint: n.Hint})
		}
	}
	return left
}

// Err is the error that the report of this plan will have, as far as the plan can tell.
func (p Plan) Err() error {
	return report.PlanErr(len(p.Nodes), p.Left())
}

// cellSep separates the cells of a row while dsbuild folds equal rows.
const cellSep = "\x00"

// Print writes the plan, equal nodes in one row.
func (p Plan) Print(w io.Writer) error {
	var rows []ui.Named
	for _, n := range p.Nodes {
		what, send, why := "-", "-", n.Remarks
		if n.Set != nil {
			what = report.ShortSum(n.Set.Digest)
		}
		switch {
		case len(n.Reasons) > 0:
			why = n.Reasons
		case n.Action == deploy.UpToDate:
			why = append([]string{"has this environment already"}, why...)
		case n.Ready:
			why = append([]string{"the environment is there: only the link changes"}, why...)
		case n.Action == deploy.Install:
			if n.Serial > 0 {
				why = append([]string{fmt.Sprintf("group %d", n.Serial)}, why...)
			}
			send = fmt.Sprintf("%s in %s", ui.Size(n.Size()), ui.Count(len(n.Files()), "file"))
		}
		row := func(why string) string {
			return strings.Join([]string{string(n.Action), what, send, cmp.Or(why, "-")}, cellSep)
		}
		text := strings.Join(why, "; ")
		rows = append(rows, ui.Named{Name: n.Name, Text: row(text), Cause: row(cmp.Or(n.cause, text))})
	}
	var table [][]string
	for _, f := range ui.Fold(rows) {
		if f.Example != "" {
			f.Text += " (as on " + f.Example + ")"
		}
		table = append(table, append([]string{f.Names}, strings.Split(f.Text, cellSep)...))
	}
	return ui.Table(w, []string{"NODES", "ACTION", "ENVIRONMENT", "SENDS", "WHY"}, table)
}
