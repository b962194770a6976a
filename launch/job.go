// Package launch turns a description of one training job into what starts it:
// scripts for Slurm, torchrun, DeepSpeed's launcher, JAX, AIStation and docker,
// manifests for Kubernetes.
//
// A job is said once (by flags, by a file, or both); each kind of rendering is
// text that runs as it is and that explains in comments why it says what it
// says. Nothing is started here.
package launch

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/inventory"
)

// Kind is a way to launch a job.
type Kind string

// The kinds there are.
const (
	Slurm     Kind = "slurm"
	Torchrun  Kind = "torchrun"
	DeepSpeed Kind = "deepspeed"
	JAX       Kind = "jax"
	AIStation Kind = "aistation"
	K8s       Kind = "k8s"
	Docker    Kind = "docker"
)

// Kinds lists all kinds, each with what it is.
func Kinds() []KindInfo {
	return []KindInfo{
		{Slurm, "a batch script for Slurm that runs torchrun on each node"},
		{Torchrun, "one script for one node or many, started by hand on each"},
		{DeepSpeed, "DeepSpeed's own launcher: hostfile, environment, configuration"},
		{JAX, "a JAX program on several hosts, by Slurm or by hand"},
		{AIStation, "a script and the form of a container platform, fixed or elastic"},
		{K8s, "manifests for Kubeflow: a PyTorchJob or a TrainJob"},
		{Docker, "one docker run on each node"},
	}
}

// KindInfo is a kind with what it is.
type KindInfo struct {
	Kind  Kind
	About string
}

// Nodes is how many nodes a job takes: MIN to MAX, the same where it is fixed.
type Nodes struct{ Min, Max int }

// Elastic reports whether the job may run on fewer nodes than it would like.
func (n Nodes) Elastic() bool { return n.Min != n.Max }

// String is N, or MIN:MAX as torchrun writes it.
func (n Nodes) String() string {
	if n.Elastic() {
		return fmt.Sprintf("%d:%d", n.Min, n.Max)
	}
	return strconv.Itoa(n.Max)
}

// Var is a variable of the job's environment. One that is Taken has no value
// here: it comes from the environment of whoever starts the job, as secrets do.
type Var struct {
	Name, Value string
	Taken       bool
}

// Mount is a folder that containers see: Source is a path of the node (or, for
// Kubernetes, the name of a volume claim).
type Mount struct {
	Source, Target string
	ReadOnly       bool
}

// Resource is something that nodes of Kubernetes offer, and how much of it.
type Resource struct {
	Name   string
	Number int
}

// Toleration is a taint of nodes that pods may run on. Equal: with that value
// alone.
type Toleration struct {
	Key, Value, Effect string
	Equal              bool
}

// Job is one training job, checked. Zero numbers and empty texts were neither
// said nor have a default for the job's kind.
type Job struct {
	Kind Kind
	Name string

	Nodes Nodes
	GPUs  int // of each node
	Procs int // processes of each node
	CPUs  int // of each task: all processes of a node under torchrun, one under JAX

	// ProcsSaid: the number of processes was given, and does not follow from the
	// GPUs that a node turns out to have.
	ProcsSaid bool
	// Slots: how many GPUs each node has is what the inventory says of it.
	Slots bool
	// GPUsKnown: the number of GPUs was given, by a flag or by the inventory, or
	// several processes share them.
	GPUsKnown bool

	Rendezvous  string // static or c10d
	Master      string // address of the first node
	Port        int    // 0: from the number of the Slurm job
	RdzvID      string // "": from the number of the Slurm job
	MaxRestarts int
	JoinTimeout int // seconds; 0: torch's own

	SlurmForm string // job or workers
	JAXForm   string // slurm or manual
	K8sForm   string // pytorchjob or trainjob
	DSForm    string // pdsh or nodes

	Time, Partition, Account, QOS, Nodelist, Log string // of Slurm

	Env       []Var
	NCCLDebug string
	Setup     string // a shell line
	WorkDir   string
	Python    string
	Script    string
	Module    bool // Script is the name of a module and not a file: python -m
	Args      []string

	Image     string
	Mounts    []Mount
	ShmSize   string
	Namespace string

	// Of Slurm:
	Requeue   bool   // put back into the queue after it was preempted
	Container string // pyxis or apptainer; "" for none

	// Of Kubernetes:
	Memory      string
	RDMA        Resource
	Tolerations []Toleration
	PullSecret  string
	Gang        string // kueue, volcano or coscheduling; "" for none
	Queue       string

	JAXPlatforms string
	Preallocate  bool
	MemFraction  string

	DS DSConfig
	// Include and Exclude are DeepSpeed's filters of the hostfile.
	Include, Exclude string

	// Hosts are the nodes of the inventory that the job runs on, first the one
	// where all meet; nil without an inventory.
	Hosts []inventory.Host
	// HostsKnown is how many nodes the inventory had.
	HostsKnown int
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

// Shape says the size of the job in words.
func (j *Job) Shape() string {
	nodes := plural(j.Nodes.Max, "node")
	if j.Nodes.Elastic() {
		nodes = fmt.Sprintf("%d to %d nodes", j.Nodes.Min, j.Nodes.Max)
	}
	if j.GPUs == 0 {
		return fmt.Sprintf("%s, %s on each", nodes, plural(j.Procs, "process"))
	}
	return fmt.Sprintf("%s, %s on each", nodes, plural(j.GPUs, "GPU"))
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if strings.HasSuffix(what, "s") {
		what += "e"
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// File is one file of a rendering.
type File struct {
	Name string
	Mode fs.FileMode
	Text string
}
