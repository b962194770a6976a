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
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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
	// Name is that of the cluster's folder; "" means one that no other has.
	Name string
	// Stay makes the cluster outlive this program. Open finds it by its name.
	Stay bool
	// Nodes is how many compute nodes; 0 means 4.
	Nodes int
	// CPUs is how many CPUs a node says it has, whatever this machine has; 0
	// means 16.
	CPUs int
	// MemoryMB is how much memory a node says it has; 0 means 4000.
	MemoryMB int
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
	// PythonVersion is the environment's major.minor version; "" means 3.11.
	PythonVersion string
	// CacheDir holds environments; "" means dsbuild's folder in the user's cache.
	CacheDir string
	// Log, if set, gets a line before each step that takes long.
	Log func(line string)
}

// Cluster is a running cluster.
type Cluster struct {
	// Name is that of its folder.
	Name string
	// Dir is that folder; on every node it has this path, too.
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

func (o *Options) withDefaults() error {
	for _, d := range []struct {
		what           string
		value          *int
		byDefault, max int
	}{
		{"nodes", &o.Nodes, 4, 250},
		{"CPUs per node", &o.CPUs, 16, 1024},
		{"MB of memory per node", &o.MemoryMB, 4000, 1 << 30},
		{"GPUs per node", &o.GPUs, 0, 64},
		{"seconds until a node is down", &o.DownAfter, 15, 1 << 16},
		{"MB of disk per node", &o.DiskMB, 1024, 1 << 20},
	} {
		if *d.value == 0 {
			*d.value = d.byDefault
		}
		if *d.value < 0 || *d.value > d.max {
			return fmt.Errorf("%d %s: at most %d", *d.value, d.what, d.max)
		}
	}
	if len(o.Partitions) == 0 {
		o.Partitions = []string{"batch"}
	}
	word := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,40}$`)
	for _, name := range slices.Concat(o.Partitions, []string{o.Name}) {
		if name != "" && !word.MatchString(name) {
			return fmt.Errorf("%q is no name: letters, digits, _ and -", name)
		}
	}
	if o.PythonVersion == "" {
		o.PythonVersion = "3.11"
	}
	if o.CacheDir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return err
		}
		o.CacheDir = filepath.Join(cache, "dsbuild")
	}
	if o.Log == nil {
		o.Log = func(string) {}
	}
	return nil
}

// Up runs a cluster and returns when all of its nodes take jobs. It installs missing packages,
// and removes leftovers of clusters whose programs were killed.
func Up(ctx context.Context, opt Options) (*Cluster, error) {
	if err := opt.withDefaults(); err != nil {
		return nil, err
	}
	if err := ensurePrograms(ctx, opt.Log); err != nil {
		return nil, err
	}
	if err := removeLeftovers(); err != nil {
		return nil, err
	}
	env, err := makeEnvironment(ctx, opt)
	if err != nil {
		return nil, fmt.Errorf("making the Python environment: %w", err)
	}
	lock, name, err := newFolder(opt.Name)
	if err != nil {
		return nil, err
	}
	c := name.cluster(opt)
	c.env = env
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
	return c.writeRecord()
}

// cluster names everything of a cluster; it touches nothing.
func (f folder) cluster(opt Options) *Cluster {
	c := &Cluster{
		Name: string(f), Dir: f.dir(), Home: filepath.Join(f.dir(), "home"),
		Partitions: opt.Partitions, opt: opt,
	}
	if len(opt.Packages) > 0 {
		c.Python = filepath.Join(c.Dir, "env", "bin", "python")
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
