package main

import (
	"runtime"
	"runtime/debug"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/envdeploy"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/ship"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/launch/jobrunner"
	"github.com/dsbuild/dsbuild/launch/lint"
	"github.com/dsbuild/dsbuild/launch/submit"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// The JSON documents that only the command line prints, in the order of docs/schema. A document that a package
// returns as its result, such as a report, is declared in that package.

// deployPlan is deploy-plan.json: dsbuild deploy --dry-run and rollback --dry-run.
type deployPlan struct {
	Nodes  []deployPlanNode `json:"nodes"`
	Undone *node.Run        `json:"undone,omitempty"` // the run that a rollback undoes
}

type deployPlanNode struct {
	planNode
	Wheel       string   `json:"wheel"`
	ExtraWheels []string `json:"extra_wheels"`
}

// planNode is the part of a node that deploy-plan.json and env-plan.json share.
type planNode struct {
	Name    string   `json:"name"`
	Action  string   `json:"action"`
	Reasons []string `json:"reasons"`
	Notes   []string `json:"notes"`
	Hint    string   `json:"hint"`
	Serial  int      `json:"serial,omitempty"`
}

func newPlanNode(n change.Decision, h hints) planNode {
	reasons, notes := append([]string{}, n.Reasons...), append([]string{}, n.Notes...)
	return planNode{n.Name, string(n.Action), reasons, notes, h.expand(n.Hint, n.Name), n.Serial}
}

func newDeployPlan(plan deploy.Plan, h hints) deployPlan {
	doc := deployPlan{Nodes: make([]deployPlanNode, 0, len(plan.Nodes)), Undone: plan.Undone}
	for _, n := range plan.Nodes {
		entry := deployPlanNode{planNode: newPlanNode(n.Decision, h), Wheel: n.WheelName, ExtraWheels: []string{}}
		for _, a := range n.ExtraWheels {
			entry.ExtraWheels = append(entry.ExtraWheels, a.Name+" "+a.Version)
		}
		doc.Nodes = append(doc.Nodes, entry)
	}
	return doc
}

// envLock is env-lock.json: dsbuild env lock.
type envLock struct {
	Lock    string       `json:"lock"`
	Changed bool         `json:"changed"`
	Name    string       `json:"name"`
	Python  string       `json:"python"`
	Sets    []envLockSet `json:"sets"`
}

type envLockSet struct {
	environment.Platform
	Digest string `json:"digest"`
	Files  int    `json:"files"`
	Size   int64  `json:"size"`
}

func newEnvLock(file string, l *environment.Lock, changed bool) envLock {
	doc := envLock{Lock: file, Changed: changed, Name: l.Name, Python: l.Python}
	for _, s := range l.Sets {
		doc.Sets = append(doc.Sets, envLockSet{s.Platform, s.Digest, len(s.Files), s.Size()})
	}
	return doc
}

// envPlan is env-plan.json: dsbuild env deploy --dry-run.
type envPlan struct {
	Nodes  []envPlanNode `json:"nodes"`
	Undone *node.Run     `json:"undone,omitempty"` // the run that a rollback undoes
}

type envPlanNode struct {
	planNode
	Digest string   `json:"digest"`
	Ready  bool     `json:"ready"`
	Send   []string `json:"send"`
	Bytes  int64    `json:"bytes"`
}

func newEnvPlan(plan envdeploy.Plan, h hints) envPlan {
	doc := envPlan{Nodes: []envPlanNode{}, Undone: plan.Undone}
	for _, n := range plan.Nodes {
		node := envPlanNode{planNode: newPlanNode(n.Decision, h), Ready: n.Ready, Send: []string{}, Bytes: n.Size()}
		if n.Set != nil {
			node.Digest = n.Set.Digest
		}
		for _, f := range n.Files() {
			node.Send = append(node.Send, f.File)
		}
		doc.Nodes = append(doc.Nodes, node)
	}
	return doc
}

// gpuList is the document of gpus.json.
type gpuList struct {
	compat.Origin
	GPUs []listedGPU `json:"gpus"`
}

type listedGPU struct {
	compat.GPU
	CUDA  []string `json:"cuda"`            // that compile for it, newest first
	Torch string   `json:"torch,omitempty"` // the newest that itself runs on it
}

func newGPUList(tables *compat.Tables, gpus []compat.GPU) gpuList {
	doc := gpuList{Origin: tables.Origins["gpus"], GPUs: []listedGPU{}}
	for _, g := range gpus {
		g.Machine = cpuOf(g)
		doc.GPUs = append(doc.GPUs, listedGPU{g, compat.Compilers(tables.CUDAs, g.Arch), newestTorch(tables, g)})
	}
	return doc
}

// slurmJobs is launch-slurm.json: dsbuild launch --submit of a job that Slurm runs.
type slurmJobs struct {
	Jobs []slurmJob `json:"jobs"`
}

type slurmJob struct {
	Job     string  `json:"job"`
	State   string  `json:"state"`     // Slurm's word
	Code    int     `json:"exit_code"` // of the batch script
	Signal  int     `json:"signal"`
	Nodes   string  `json:"nodes"`
	Failed  string  `json:"failed_nodes,omitempty"` // where it failed first
	Why     string  `json:"why,omitempty"`
	Output  string  `json:"output"` // file
	Seconds float64 `json:"seconds"`
}

func newSlurmJobs(e submit.Result) slurmJobs {
	return slurmJobs{[]slurmJob{{
		Job: e.ID, State: e.Name, Code: e.Code, Signal: e.Signal, Nodes: e.Nodes,
		Failed: e.Blame.Nodes, Why: e.Blame.Why, Output: e.Output, Seconds: e.Wall.Seconds(),
	}}}
}

// nodeJobs is launch.json: dsbuild launch --submit of a job that dsbuild runs.
type nodeJobs struct {
	Jobs []*jobrunner.Report `json:"jobs"`
}

// lintFindings is lint.json: dsbuild launch lint.
type lintFindings struct {
	Files    []string       `json:"files"`
	Findings []lint.Finding `json:"findings"`
}

// nodeList is the document of nodes.json. Settings that the inventory lacks are omitted.
type nodeList struct {
	KnownHosts string           `json:"known_hosts,omitempty"`
	Nodes      []inventory.Host `json:"nodes"`
}

func newNodeList(inv *inventory.Inventory) nodeList {
	doc := nodeList{inv.KnownHosts, append([]inventory.Host{}, inv.Hosts...)}
	for i, h := range doc.Nodes {
		doc.Nodes[i].Groups = append([]string{}, h.Groups...)
	}
	return doc
}

// opList is the document of ops.json.
type opList struct {
	compat.Origin
	Default []string    `json:"default"`
	Ops     []compat.Op `json:"ops"`
}

func newOpList(t *compat.Tables) opList { return opList{t.Origins["ops"], wheel.DefaultOps(), t.Ops} }

// shipPlan is ship-plan.json: dsbuild ship --dry-run.
type shipPlan struct {
	wheelForPlan
	deployPlan
}

func newShipPlan(plan *ship.Selection, preview deploy.Plan, h hints) shipPlan {
	return shipPlan{newWheelForPlan(plan), newDeployPlan(preview, h)}
}

// toolchainList is the document of toolchains.json.
type toolchainList struct {
	Toolchains table[compat.CUDASourceInfo] `json:"toolchains"`
	Bases      table[compat.Base]           `json:"bases"`
	CUDA       table[compat.CUDA]           `json:"cuda"`
	Torch      table[compat.Torch]          `json:"torch"`
	DeepSpeed  table[compat.DeepSpeed]      `json:"deepspeed"`
}

// table is a table of compat with its source and date.
type table[T any] struct {
	compat.Origin
	Rows []T `json:"rows"`
}

func newToolchainList(tables *compat.Tables) toolchainList {
	return toolchainList{
		table[compat.CUDASourceInfo]{tables.Origins["toolchains"], tables.CUDASources},
		table[compat.Base]{tables.Origins["bases"], tables.Bases},
		table[compat.CUDA]{tables.Origins["cuda"], tables.CUDAs},
		table[compat.Torch]{tables.Origins["torch"], tables.Torches},
		table[compat.DeepSpeed]{tables.Origins["deepspeed"], tables.DeepSpeeds},
	}
}

// versionInfo is version.json: dsbuild version.
type versionInfo struct {
	Arch    string `json:"arch"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Version string `json:"version"`
}

func newVersionInfo(version string) versionInfo {
	doc := versionInfo{Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				doc.Commit = s.Value
			}
		}
	}
	return doc
}

// wheelForPlan is wheel-for-plan.json: dsbuild wheel --for --dry-run.
type wheelForPlan struct {
	Groups   []report.Group      `json:"groups"`
	Excluded []ship.ExcludedNode `json:"excluded"`
}

func newWheelForPlan(plan *ship.Selection) wheelForPlan {
	return wheelForPlan{plan.Groups(), plan.Excluded}
}

// wheelPlan is wheel-plan.json: dsbuild wheel --dry-run.
type wheelPlan struct {
	Name   string `json:"name,omitempty"` // in wheels-plan.json
	Digest string `json:"plan_digest"`
	*pipeline.Plan
	Wheelhouse []pipeline.Step `json:"wheelhouse,omitempty"`
}

func newWheelPlan(plan *pipeline.Plan, house *pipeline.BundlePlan) wheelPlan {
	doc := wheelPlan{Digest: plan.Digest, Plan: plan}
	if house != nil {
		doc.Wheelhouse = house.Steps
	}
	return doc
}

// wheelResult is wheel.json: dsbuild wheel.
type wheelResult struct {
	Wheels     []wheel.Artifact `json:"wheels"`
	Wheelhouse *wheelhouse      `json:"wheelhouse,omitempty"`
}

type wheelhouse struct {
	Path string `json:"path"`
	wheel.Bundle
}

func newWheelResult(made wheel.Artifact, house string, b *wheel.Bundle) wheelResult {
	doc := wheelResult{Wheels: []wheel.Artifact{made}}
	if b != nil {
		doc.Wheelhouse = &wheelhouse{house, *b}
	}
	return doc
}

// wheelsPlan is wheels-plan.json: dsbuild wheel --dry-run for several machines.
type wheelsPlan struct {
	Plans []wheelPlan `json:"plans"`
}

func newWheelsPlan(plans []*pipeline.Plan) wheelsPlan {
	doc := wheelsPlan{Plans: []wheelPlan{}}
	for _, p := range plans {
		doc.Plans = append(doc.Plans, wheelPlan{Name: p.Name, Digest: p.Digest, Plan: p})
	}
	return doc
}

// wheelsResult is wheels.json: what was built, and what failed. With --for it also has the nodes of each wheel, and
// those that get none.
type wheelsResult struct {
	Wheels   []builtWheel        `json:"wheels"`
	Failed   []failedWheel       `json:"failed"`
	Excluded []ship.ExcludedNode `json:"excluded,omitzero"`
}

type builtWheel struct {
	Nodes []string `json:"nodes,omitempty"`
	Name  string   `json:"name"`
	wheel.Artifact
}

type failedWheel struct {
	Nodes []string `json:"nodes,omitempty"`
	Name  string   `json:"name"`
	Error string   `json:"error"`
	Hint  string   `json:"hint,omitempty"`
}

func newWheelsResult(excluded []ship.ExcludedNode) wheelsResult {
	return wheelsResult{Wheels: []builtWheel{}, Failed: []failedWheel{}, Excluded: excluded}
}

// add adds a built wheel, or the error of a failed one.
func (d *wheelsResult) add(nodes []string, name string, made wheel.Artifact, err error) {
	if err != nil {
		d.Failed = append(d.Failed, failedWheel{nodes, name, ui.Clean(err.Error()), ui.Clean(fault.Hint(err))})
		return
	}
	d.Wheels = append(d.Wheels, builtWheel{nodes, name, made})
}
