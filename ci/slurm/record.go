//go:build linux

package slurm

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/dsbuild/dsbuild/internal/hint"
)

// record holds the data of a cluster that Open reads.
type record struct {
	Head       int      `json:"head"`
	Env        string   `json:"env"`
	Nodes      int      `json:"nodes"`
	GPUs       int      `json:"gpus"`
	DiskMB     int      `json:"disk_mb"`
	Partitions []string `json:"partitions"`
	Packages   []string `json:"packages"`
}

func (c *Cluster) recordFile() string { return filepath.Join(c.Dir, "cluster.json") }

func (c *Cluster) writeRecord() error {
	o := c.opt
	text, err := json.MarshalIndent(record{c.life.head, c.env, o.Nodes, o.GPUs, o.DiskMB, o.Partitions, o.Packages}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(c.recordFile(), append(text, '\n'), 0o644)
}

// Open returns the running cluster of that name.
func Open(name string) (*Cluster, error) {
	f := folder(name)
	missing := hint.With(fmt.Errorf("no cluster %s is up", name), "start it first")
	if _, err := os.Stat(f.lockFile()); err != nil {
		return nil, missing
	}
	// The lock is held for as long as the process lives that the record names.
	if lock, err := f.lock(); err != nil || lock != nil {
		if lock != nil {
			lock.Close()
			return nil, missing
		}
		return nil, err
	}
	var r record
	text, err := os.ReadFile(filepath.Join(f.dir(), "cluster.json"))
	if err != nil {
		return nil, hint.With(err, "it is starting: wait a moment")
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", f.dir(), err)
	}
	c := f.cluster(Options{Name: name, Stay: true, Nodes: r.Nodes, GPUs: r.GPUs, DiskMB: r.DiskMB, Partitions: r.Partitions, Packages: r.Packages})
	c.env, c.life.head = r.Env, r.Head
	return c, nil
}
