// Package launch generates the files that start a training job: scripts for Slurm, torchrun,
// JAX, AIStation and Docker, and manifests for Kubernetes.
//
// A job is described by flags, a file, or both. The files run without edits, and comments
// explain their lines. This package does not run them.
package launch

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/inventory"
)

// Launcher is a way to launch a job.
type Launcher string

// The launchers.
const (
	Slurm     Launcher = "slurm"
	Torchrun  Launcher = "torchrun"
	JAX       Launcher = "jax"
	AIStation Launcher = "aistation"
	K8s       Launcher = "k8s"
	Docker    Launcher = "docker"
)

// Kinds returns all launchers with a description.
func Kinds() []KindInfo {
	return []KindInfo{
		{Slurm, "a Slurm batch script that runs torchrun on each node"},
		{Torchrun, "a torchrun script to start on each node"},
		{JAX, "scripts for a JAX program, for Slurm or for each host"},
		{AIStation, "a script and the form values for the AIStation platform"},
		{K8s, "a Kubeflow PyTorchJob or TrainJob manifest"},
		{Docker, "a docker run script for each node"},
	}
}

// KindInfo describes a launcher.
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

// Var is an environment variable of the job. With FromEnv, the value comes from the
// environment that starts the job, as for secrets.
type Var struct {
	Name, Value string
	FromEnv     bool
}

// Mount is a directory or volume in the containers. Source is a path on the node, the name
// of a Docker volume or, for Kubernetes, of a PersistentVolumeClaim.
type Mount struct {
	Source, Target string
	ReadOnly       bool
}

// Resource is a number of Kubernetes extended resources.
type Resource struct {
	Name   string
	Number int
}

// Toleration lets pods run on nodes with a taint. With Equal, the taint must have this
// Value.
type Toleration struct {
	Key, Value, Effect string
	Equal              bool
}

// Job is a validated training job. A zero number or an empty string is unset, and has no
// default for the job's launcher.
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
	GPUs  int // per node
	// GPUType is Slurm's name of the GPU type, as in gpu:h100:8. It may be empty.
	GPUType string
	Procs   int // processes per node
	CPUs    int // per task: all processes of a node with torchrun, one with JAX

	// ProcsSet is set if the user set the number of processes. Otherwise it follows from
	// the GPUs that the launcher finds on a node.
	ProcsSet bool
	// Slots is set if the inventory lists each node's number of GPUs.
	Slots bool
	// GPUsKnown is set if a flag or the inventory sets the number of GPUs, or several
	// processes share them.
	GPUsKnown bool
}

// RendezvousSettings are the rendezvous and restart settings of a job.
type RendezvousSettings struct {
	Rendezvous  string // static or c10d
	Master      string // address of the first node
	Port        int    // zero: derived from the Slurm job ID
	RdzvID      string // derived from the Slurm job ID by default
	MaxRestarts int
	JoinTimeout int // seconds, or 0 for torch's default
}

// ProgramSettings are the program, its arguments and its environment.
type ProgramSettings struct {
	Env       []Var
	NCCLDebug string
	Setup     []string // shell lines
	WorkDir   string
	Python    string
	Script    string
	Module    bool // Script is a module to run with python -m
	Args      []string
}

// ContainerSettings describe the containers of a job.
type ContainerSettings struct {
	Image   string
	Mounts  []Mount
	ShmSize string
}

// SlurmSettings are the options of a Slurm job.
type SlurmSettings struct {
	SlurmForm string // job or workers

	Time, Partition, Account, QOS, Nodelist, Constraint, Mem, Log string

	Exclusive bool     // do not share the nodes with other jobs
	Sbatch    []string // additional options, quoted for an #SBATCH line
	Requeue   bool     // requeue the job after a preemption
	Container string   // pyxis or apptainer; optional
}

// K8sSettings are the options of a job on Kubernetes.
type K8sSettings struct {
	K8sForm     string // pytorchjob or trainjob
	Namespace   string
	Memory      string
	RDMA        Resource
	Tolerations []Toleration
	PullSecret  string
	Gang        string // kueue, volcano or coscheduling; optional
	Queue       string
}

// JAXSettings are the options of a JAX job.
type JAXSettings struct {
	JAXForm      string // slurm or manual
	JAXPlatforms string
	Preallocate  bool
	MemFraction  string
}

// WorldSize returns the maximum number of processes.
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

// ProcsOf returns the number of processes on a node of the inventory.
func (j *Job) ProcsOf(h inventory.Host) int {
	if j.Slots && j.Kind != JAX {
		return h.Slots
	}
	return j.Procs
}

// NeededGPUs returns the number of NVIDIA GPUs without which the job cannot run on a node of the inventory, or on this
// machine with nil.
func (j *Job) NeededGPUs(h *inventory.Host) int {
	switch {
	case j.GPUs == 0 || j.Kind == JAX && !strings.Contains(j.JAXPlatforms, "cuda"):
		return 0
	case !j.GPUsKnown:
		return 1
	case j.Slots && h != nil:
		return h.Slots
	}
	return j.GPUs
}

// File is a generated file.
type File struct {
	Name string
	Mode fs.FileMode
	Text string
}
