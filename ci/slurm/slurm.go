//go:build linux

// Package slurm runs a real Slurm of several nodes on this machine: munged, slurmctld and a login
// node in namespaces of their own, and for each node a slurmd with its own network, processes,
// host name and disk. A job sees the same as on a cluster: a node has the system's folders, a
// home that all nodes share, and nothing else of this machine.
//
// It needs root. It writes nothing to this machine's own configuration of Slurm and munge, and no
// address exists outside of the namespaces. Nothing of a cluster outlives it: its processes end
// with the program that started it, and with them, namespaces, networks and mounts.
package slurm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/dsbuild/dsbuild/internal/hint"
)

// User is the account on all nodes for users that are not root; UserID is its
// number. This machine's own accounts are there as well.
const (
	User   = "user"
	UserID = 61000
)

// Options say which cluster to run.
type Options struct {
	// Nodes is how many compute nodes; 0 means 4.
	Nodes int
	// CPUs is how many CPUs a node says it has, whatever this machine has; 0
	// means 16.
	CPUs int
	// GPUs is how many GPUs a node says it has (gres gpu:N). They are files.
	GPUs int
	// DownAfter is after how many seconds without an answer a node is taken to
	// be DOWN (SlurmdTimeout); 0 means 15. It takes some ten more until Slurm
	// says so. The fewer, the likelier a machine with much to do is too slow.
	DownAfter int
	// DiskMB bounds the contents of a node's disk, which is in memory; 0
	// means 1024.
	DiskMB int
	// Partitions are the partitions, each with all nodes, the default one
	// first; none means "batch" alone.
	Partitions []string
	// Packages are the requirements of the Python environment; none
	// means that there is no environment. See TorchAndJAX.
	Packages []string
	// Log, if set, gets a line before each step that takes long.
	Log func(line string)
}

// Cluster is a running cluster.
type Cluster struct {
	// Dir is its folder; on every node it has this path, too.
	Dir string
	// Home is the folder that all nodes share, with the same path here and
	// there: the home of root and of User.
	Home string
	// Python is the interpreter of the environment, at the same path on every
	// node and not outside; "" without one. A node that installs into it
	// changes its own copy.
	Python string
	// Nodes are the compute nodes.
	Nodes []*Node
	// Partitions are their partitions, the default one first.
	Partitions []string

	opt  Options
	env  string // of Python, as this machine has it; "" without one
	life life
}

// ErrUnavailable says that this machine cannot run a cluster: no root, or no
// Slurm and no way to install it.
var ErrUnavailable = errors.New("no local Slurm here")

func (o *Options) setDefaults() {
	o.Nodes, o.CPUs = cmp.Or(o.Nodes, 4), cmp.Or(o.CPUs, 16)
	o.DownAfter, o.DiskMB = cmp.Or(o.DownAfter, 15), cmp.Or(o.DiskMB, 1024)
	if len(o.Partitions) == 0 {
		o.Partitions = []string{"batch"}
	}
	if o.Log == nil {
		o.Log = func(string) {}
	}
}

// Up runs a cluster and returns when all of its nodes take jobs. It installs missing packages.
func Up(ctx context.Context, opt Options) (*Cluster, error) {
	opt.setDefaults()
	if err := ensurePrograms(ctx, opt.Log); err != nil {
		return nil, err
	}
	env, err := makeEnvironment(ctx, opt)
	if err != nil {
		return nil, fmt.Errorf("making the Python environment: %w", err)
	}
	dir, lock, err := newFolder()
	if err != nil {
		return nil, err
	}
	c := newCluster(dir, env, opt)
	err = c.startHead(lock)
	lock.Close() // the head has it now
	if err == nil {
		err = c.startNodes(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Down())
	}
	return c, nil
}

func (c *Cluster) startNodes(ctx context.Context) error {
	if err := c.onEachNode(func(n *Node) error { return n.startNode(ctx) }); err != nil {
		return err
	}
	if err := c.waitUntilReady(ctx, c.Nodes...); err != nil {
		return hint.With(err, "the logs: %s", c.Logs())
	}
	return nil
}

// newCluster names everything of a cluster; it touches nothing.
func newCluster(dir, env string, opt Options) *Cluster {
	c := &Cluster{Dir: dir, Home: filepath.Join(dir, "home"), Partitions: opt.Partitions, opt: opt, env: env}
	if env != "" {
		c.Python = filepath.Join(dir, "env", "bin", "python")
	}
	digits := max(2, len(strconv.Itoa(opt.Nodes)))
	for i := range opt.Nodes {
		c.Nodes = append(c.Nodes, &Node{
			Name:    fmt.Sprintf("node%0*d", digits, i+1),
			Address: fmt.Sprintf("10.77.1.%d", i+1),
			cluster: c,
		})
	}
	return c
}
