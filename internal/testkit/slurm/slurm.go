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

	"github.com/dsbuild/dsbuild/internal/fault"
)

// User is the account on all nodes for users that are not root; UserID is its
// number. This machine's own accounts are there as well.
const (
	User   = "user"
	UserID = 61000
)

// Options describe a cluster.
type Options struct {
	// Nodes is the number of compute nodes; 0 means 4.
	Nodes int
	// CPUs is the number of CPUs that a node claims to have, whatever this machine has; 0 means
	// 16.
	CPUs int
	// GPUs is the number of GPUs that a node claims to have (gres gpu:N). They are files.
	GPUs int
	// DownAfter is the number of seconds without an answer after which a node is DOWN
	// (SlurmdTimeout); 0 means 15. Slurm reports it some ten seconds later. With a small number,
	// a busy machine may be too slow to answer.
	DownAfter int
	// DiskMB bounds the size of a node's disk, which is in memory; 0 means 1024.
	DiskMB int
	// Partitions are the names of the partitions, the default one first. Each has all nodes.
	// None means only "batch".
	Partitions []string
	// Leaf is the number of nodes at each leaf switch, leaf1, leaf2, … of a tree; 0 means that Slurm
	// knows no topology.
	Leaf int
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
	// Home is the folder that all nodes share, with the same path on this machine and on the
	// nodes. It is the home of root and of User.
	Home string
	// Python is the interpreter of the environment. It has the same path on every node, and does
	// not exist outside; "" without an environment. A node that installs into it changes its own
	// copy.
	Python string
	// Nodes are the compute nodes.
	Nodes []*Node
	// Partitions are their partitions, the default one first.
	Partitions []string

	opt  Options
	env  string // the environment's folder on this machine; "" without one
	life life
}

// ErrUnavailable means that this machine cannot run a cluster: there is no root, or no Slurm and
// no way to install it.
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

// Up starts a cluster and returns when all of its nodes accept jobs. It installs missing
// packages.
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
	lock.Close() // the cluster's first process holds it now
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
		return fault.WithHint(err, "the logs: %s", c.Logs())
	}
	return nil
}

// newCluster returns a cluster with all its names and paths; it writes nothing.
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
