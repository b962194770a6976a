//go:build linux

package main

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/proc"
)

// gauge reads the CPU time of the nodes: of their servers, and of all processes below them. This
// process adopts the processes that outlive their connection.
type gauge struct {
	fleet   *nodes.Fleet
	orphans time.Duration // of orphans that have ended
	others  []int         // children of this process that do not belong to the nodes
}

// passOver ignores the orphans that this process has adopted until now: they belong to the
// engine that built the wheels, and not to the nodes.
func (g *gauge) passOver() {
	for _, p := range childrenOf(os.Getpid()) {
		if !p.Ended() {
			g.others = append(g.others, p.PID)
		}
	}
}

// adoptOrphans makes this process the parent of the processes that nodes leave behind. Call it
// before the nodes start.
func adoptOrphans() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// settleLimit is how long nodes may be busy after the last command has ended.
const settleLimit = time.Minute

// readCPU waits until the nodes run no more processes, and returns the CPU time that they have
// used since their start.
func (g *gauge) readCPU() (time.Duration, error) {
	for deadline := time.Now().Add(settleLimit); ; time.Sleep(5 * time.Millisecond) {
		servers, busy, err := g.sortProcesses(proc.All())
		if err != nil {
			return 0, err
		}
		if len(busy) == 0 {
			used := g.orphans
			for _, p := range servers {
				used += p.CPU
			}
			return used, nil
		}
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("%s after the command has ended there still run %v on the nodes", settleLimit, busy)
		}
	}
}

// sortProcesses finds the servers among all processes, and the other processes on the nodes. It
// waits for orphans that have ended.
func (g *gauge) sortProcesses(all []proc.Process) (servers, busy []proc.Process, err error) {
	var pids []int
	for _, n := range g.fleet.Nodes {
		if pid := n.Pid(); pid != 0 {
			pids = append(pids, pid)
		}
	}
	if len(pids) != len(g.fleet.Nodes) {
		return nil, nil, fmt.Errorf("%d of %d nodes run", len(pids), len(g.fleet.Nodes))
	}
	below := map[int]bool{os.Getpid(): true}
	for _, pid := range pids {
		below[pid] = true
	}
	for _, p := range all {
		switch {
		case slices.Contains(pids, p.PID):
			servers = append(servers, p)
		case p.Parent == os.Getpid() && p.State == "Z":
			var u syscall.Rusage
			if pid, err := syscall.Wait4(p.PID, nil, syscall.WNOHANG, &u); pid == p.PID && err == nil {
				g.orphans += cpuOf(u)
			}
		case below[p.Parent] && !slices.Contains(g.others, p.PID): // enough to show that a node is working
			busy = append(busy, p)
		}
	}
	return servers, busy, nil
}
