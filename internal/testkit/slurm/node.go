//go:build linux

package slurm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/dsbuild/dsbuild/internal/testkit/child"
)

// Node is a compute node.
type Node struct {
	Name    string
	Address string

	cluster *Cluster
}

func (n *Node) disk() string    { return filepath.Join(n.cluster.Dir, "nodes", n.Name) }
func (n *Node) pidFile() string { return filepath.Join(n.cluster.Dir, "run", n.Name+".pid") }

// onEachNode calls do for all nodes at once.
func (c *Cluster) onEachNode(do func(n *Node) error) error {
	errs := make([]error, len(c.Nodes))
	var wg sync.WaitGroup
	for i, n := range c.Nodes {
		wg.Go(func() {
			if err := do(n); err != nil {
				errs[i] = fmt.Errorf("%s: %w", n.Name, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// startNode makes the node's namespaces and their contents, and returns when its slurmd is about
// to start. From then on its processes belong to the cluster.
func (n *Node) startNode(ctx context.Context) error {
	c := n.cluster
	ready, wait, err := openReadiness()
	if err != nil {
		return err
	}
	defer ready.Close()
	log, err := os.OpenFile(c.log(n.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	const script = `setsid unshare --mount --uts --ipc --net --propagation private bash "$0" </dev/null &`
	cmd := c.enterCommand(ctx, nil, "bash", "-c", script, filepath.Join(c.Dir, "scripts", "node.sh"))
	cmd.Env = append(c.Env(), "DIR="+c.Dir, "NAME="+n.Name, "ADDRESS="+n.Address, "PYENV="+c.env,
		"GPUS="+strconv.Itoa(c.opt.GPUs), "DISK="+strconv.Itoa(c.opt.DiskMB)+"m")
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = "/", log, log, []*os.File{ready}
	if err := cmd.Run(); err != nil {
		return err
	}
	ready.Close()
	if !wait() {
		return errors.New("its setup failed: " + readLastLine(c.log(n.Name)))
	}
	return nil
}

// readLastLine returns the last line of a file.
func readLastLine(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return child.LastLines(text, 1)
}

// Command is a command on the node itself, without Slurm, as root. Its folder and environment
// are those of Cluster.Command.
func (n *Node) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	enter := []string{filepath.Join(n.cluster.Dir, "scripts", "enter.sh"), n.pidFile(), name}
	return n.cluster.enterCommand(ctx, nil, append(enter, args...)...)
}

// KillSlurmd kills the node's slurmd. Jobs on the node go on.
func (n *Node) KillSlurmd(ctx context.Context) error {
	return runSilently(n.Command(ctx, "sh", "-c", `kill -KILL "$(cat /run/slurmd.pid)"`))
}

// PowerOff kills all processes on the node at once, without notice. Its disk is lost.
func (n *Node) PowerOff(ctx context.Context) error {
	// The file names the parent of the node's first process. That parent ends the first process,
	// which ends all others.
	const script = `set -e
pid=$(cat "$0")
first=$(cat "/proc/$pid/task/$pid/children")
rm "$0"
kill -KILL "$pid"
while [ -e "/proc/${first% }" ]; do sleep 0.02; done`
	return runSilently(n.cluster.enterCommand(ctx, nil, "bash", "-c", script, n.pidFile()))
}

// PowerOn starts a node that was switched off and returns when it accepts jobs.
func (n *Node) PowerOn(ctx context.Context) error {
	if _, err := os.Stat(n.pidFile()); err == nil {
		return fmt.Errorf("%s is on", n.Name)
	}
	if err := n.startNode(ctx); err != nil {
		return err
	}
	return n.cluster.waitUntilReady(ctx, n)
}

// runSilently runs a command that prints nothing but errors.
func runSilently(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
