// Package launch renders one training job as files: scripts for Slurm, torchrun,
// JAX, AIStation and docker, and manifests for Kubernetes.
//
// Flags, a file, or both describe the job. Each rendering runs without changes, and
// its comments explain its lines. This package starts nothing.
package launch

import (
	"fmt"
	"io/fs"
	"strconv"

	"github.com/dsbuild/dsbuild/inventory"
)

// Launcher is a way to launch a job.
type Launcher string

// The kinds there are.
const (
	Slurm     Launcher = "slurm"
	Torchrun  Launcher = "torchrun"
	JAX       Launcher = "jax"
	AIStation Launcher = "aistation"
	K8s       Launcher = "k8s"
	Docker    Launcher = "docker"
)

// Kinds lists all kinds with a description.
func Kinds() []KindInfo {
	return []KindInfo{
		{Slurm, "a Slurm batch script that runs torchrun on each node"},
		{Torchrun, "a torchrun script to start on each node"},
		{JAX, "scripts for a multi-host JAX program, by Slurm or by hand"},
		{AIStation, "a script and the form values for the AIStation platform"},
		{K8s, "a Kubeflow PyTorchJob or TrainJob manifest"},
		{Docker, "a docker run script for each node"},
	}
}

// KindInfo is a kind with a description.
type KindInfo struct {
	Kind  Launcher
	Short string
}

// Nodes is the number of nodes of a job: MIN to MAX, equal for a fixed size.
type Nodes struct{ Min, Max int }

// Elastic reports whether the job may run on fewer than Max nodes.
func (n Nodes) Elastic() bool { return n.Min != n.Max }

// String returns N, or MIN:MAX as torchrun writes it.
func (n Nodes) String() string {
	if n.Elastic() {
		return fmt.Sprintf("%d:%d", n.Min, n.Max)
	}
	return strconv.Itoa(n.Max)
}

// Var is a variable of the job's environment. A Taken variable has no value here: it
// comes from the environment that starts the job, as secrets do.
type Var struct {
	Name, Value string
	FromEnv     bool
}

// Mount is a folder in the containers. Source is a path of the node or, for
// Kubernetes, the name of a volume claim.
type Mount struct {
	Source, Target string
	ReadOnly       bool
}

// Resource is an extended resource of Kubernetes, with a count.
type Resource struct {
	Name   string
	Number int
}

// Toleration lets pods run on nodes with this taint. Equal: only if the taint has
// this value.
type Toleration struct {
	Key, Value, Effect string
	Equal              bool
}

// Job is one checked training job. A zero number or an empty text was not given
// and has no default for the job's kind.
type Job struct {
	Kind Launcher
	Name string

	SizeSettings
	RendezvousSettings
	ProgramSettings
	ContainerSettings
	SlurmSettings
	K8sSettings
	JAXSettings
	DS DSConfig

	// Hosts are the nodes of the inventory that the job runs on, the master
	// first; nil without an inventory.
	Hosts []inventory.Host
	// HostsKnown is the number of nodes in the inventory.
	HostsKnown int
}

// SizeSettings are the nodes, GPUs, processes and CPUs of a job.
type SizeSettings struct {
	Nodes Nodes
	GPUs  int // of each node
	// GPUType is the type of the GPUs in Slurm's words, as in gpu:h100:8; "" for any.
	GPUType string
	Procs   int // processes of each node
	CPUs    int // of each task: all processes of a node under torchrun, one under JAX

	// ProcsSet: the user gave the number of processes; else it follows from the
	// GPUs that the launcher finds on a node.
	ProcsSet bool
	// Slots: the inventory gives each node's number of GPUs.
	Slots bool
	// GPUsKnown: a flag or the inventory gave the number of GPUs, or several
	// processes share them.
	GPUsKnown bool
}

// RendezvousSettings say how the nodes find each other, and how often they start
// again.
type RendezvousSettings struct {
	Rendezvous  string // static or c10d
	Master      string // address of the first node
	Port        int    // 0: from the number of the Slurm job
	RdzvID      string // "": from the number of the Slurm job
	MaxRestarts int
	JoinTimeout int // seconds; 0: torch's default
}

// ProgramSettings are the program, its arguments and its surroundings.
type ProgramSettings struct {
	Env       []Var
	NCCLDebug string
	Setup     []string // shell lines
	WorkDir   string
	Python    string
	Script    string
	Module    bool // Script is the name of a module and not a file: python -m
	Args      []string
}

// ContainerSettings describe the containers of a job.
type ContainerSettings struct {
	Image   string
	Mounts  []Mount
	ShmSize string
}

// SlurmSettings are the options of a job that Slurm runs.
type SlurmSettings struct {
	SlurmForm string // job or workers

	Time, Partition, Account, QOS, Nodelist, Constraint, Mem, Log string

	Exclusive bool     // no other job on the nodes
	Sbatch    []string // further options, quoted for a #SBATCH line
	Requeue   bool     // put the job back into the queue after a preemption
	Container string   // pyxis or apptainer; "" for none
}

// K8sSettings are the options of a job on Kubernetes.
type K8sSettings struct {
	K8sForm     string // pytorchjob or trainjob
	Namespace   string
	Memory      string
	RDMA        Resource
	Tolerations []Toleration
	PullSecret  string
	Gang        string // kueue, volcano or coscheduling; "" for none
	Queue       string
}

// JAXSettings are the options of a JAX job.
type JAXSettings struct {
	JAXForm      string // slurm or manual
	JAXPlatforms string
	Preallocate  bool
	MemFraction  string
}

// WorldSize is the number of processes, at most.
func (j *Job) WorldSize() int {
	if len(j.Hosts) > 0 {
		world := 0
		for _, h := range j.Hosts {
			world += j.ProcsOf(h)
		}
		return world
	}
	return j.Nodes.Max * j.Procs
}

// ProcsOf is the number of processes on a node of the inventory.
func (j *Job) ProcsOf(h inventory.Host) int {
	if j.Slots && j.Kind != JAX {
		return h.Slots
	}
	return j.Procs
}

// File is one file of a rendering.
type File struct {
	Name string
	Mode fs.FileMode
	Text string
}
