//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// The relay's nodes and files. On links so slow, two cores are idle most of the time, and the links
// alone decide how long a copy takes. A star of the larger file to all nodes would take half an hour.
const (
	relayNodes = 64
	linkSpeed  = nodes.Rate(20) // Mbit/s, of the driver and of each node
	passedFile = "passed.bin"
	passedSize = 100_000_000
	racedFile  = "raced.bin"
	racedSize  = 10_000_000
	racedNodes = 16
)

// relaySizes returns the numbers of nodes that get the larger file.
func relaySizes() []int { return []int{1, 4, 16, 48, relayNodes} }

// killedOf48 are the places of the nodes that die in a relay to 48 nodes: a tenth of them.
func killedOf48() []int { return []int{4, 13, 22, 31, 40} }

// relayRaces measures copies over slow links.
type relayRaces struct {
	fleetRaces
	sent map[string]float64 // copies of the file that the driver's link carried in the last run, by contender
}

// measureRelay compares a file's way through the nodes with the driver sending it to each, on nodes
// of its own.
func (ws *workspace) measureRelay(ctx context.Context) (_ string, err error) {
	races, err := ws.startSlowNodes(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, races.fleet.Down()) }()
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "", err
	}
	growth, err := races.measureSizes(ctx)
	if err != nil {
		return "", err
	}
	killed, err := races.measureKilled(ctx)
	if err != nil {
		return growth, err
	}
	rank, err := races.compareRelays(ctx)
	if err != nil {
		return growth + killed, err
	}
	return strings.Join([]string{
		fmt.Sprintf("Links of %d Mbit/s in both directions, for the driver and for each node. Load average of the machine before: %s.\n",
			linkSpeed, strings.Join(strings.Fields(string(load))[:3], ", ")),
		growth, killed, rank, races.listTools(),
	}, "\n"), nil
}

// startSlowNodes starts nodes with slow links.
func (ws *workspace) startSlowNodes(ctx context.Context) (*relayRaces, error) {
	own := *ws
	own.dir = filepath.Join(ws.dir, "relay")
	step := ws.ui.Step(fmt.Sprintf("%d nodes with links of %d Mbit/s", relayNodes, linkSpeed))
	fleet, err := nodes.Up(ctx, nodes.Options{Dir: filepath.Join(own.dir, "nodes"), Count: relayNodes, Env: nodes.FakeTorch, Networks: true, Log: step.Log})
	if err != nil {
		step.End(ui.Failed, "")
		return nil, err
	}
	own.fleet, own.gauge = fleet, &gauge{fleet: fleet}
	own.gauge.passOver() // the nodes of other parts, and the processes that hold the networks
	races := &relayRaces{fleetRaces{&own}, map[string]float64{}}
	err = errors.Join(fleet.Shape(linkSpeed, linkSpeed), own.writeConfigs(), races.emptyHomes(), races.makeFile(passedFile, passedSize), races.makeFile(racedFile, racedSize))
	if err != nil {
		step.End(ui.Failed, "")
		return nil, errors.Join(err, fleet.Down())
	}
	step.End(ui.Done, "")
	return races, nil
}

// putLine is the command that brings the larger file to n nodes.
func putLine(n int) string {
	return fmt.Sprintf("bench put nodes/inventory.yaml %d %s nodes/HOST/home auto", n, passedFile)
}

// copies runs do, and returns how many copies of a file of this size the driver's link carried.
func (races *relayRaces) copies(size int64, do func() error) (float64, error) {
	before, err := races.fleet.DriverSent()
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := races.fleet.DriverSent()
	return float64(after-before) / float64(size), err
}

// measureSizes brings the larger file to more and more nodes.
func (races *relayRaces) measureSizes(ctx context.Context) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s to | wall, s | × 1 node | copies over the driver's link | driver's CPU, s |\n|---|---|---|---|---|\n", ui.Size(passedSize))
	one := 0.0
	for _, n := range relaySizes() {
		took, sent, err := races.pass(ctx, n, func(context.Context) error { return nil })
		if err == nil && took.Status != 0 {
			err = fmt.Errorf("%d nodes: it ended with status %d; its output is in %s", n, took.Status, races.log.Name())
		}
		if err == nil {
			err = races.mustHaveFile(passedFile, races.fleet.Nodes[:n])
		}
		if err != nil {
			return "", err
		}
		one = cmp.Or(one, took.Wall)
		fmt.Fprintf(&b, "| %s | %.1f | %.2f | %.2f | %.2f |\n", ui.Count(n, "node"), took.Wall, took.Wall/one, sent, took.CPU)
	}
	return b.String(), nil
}

// pass brings the larger file to n nodes, with something else happening meanwhile.
func (races *relayRaces) pass(ctx context.Context, n int, meanwhile func(context.Context) error) (took cost, sent float64, err error) {
	if err := races.emptyHomes(); err != nil {
		return took, 0, err
	}
	syscall.Sync()
	step := races.ui.Step(fmt.Sprintf("%s to %s", ui.Size(passedSize), ui.Count(n, "node")))
	limited, cancel := context.WithTimeoutCause(ctx, commandLimit, fmt.Errorf("not done within %s", commandLimit))
	defer cancel()
	sent, err = races.copies(passedSize, func() error {
		happened := make(chan error, 1)
		go func() { happened <- meanwhile(limited) }()
		var err error
		if took, err = races.measure(limited, putLine(n)); err != nil {
			cancel()
		}
		return errors.Join(err, <-happened)
	})
	if err != nil {
		step.End(ui.Failed, "")
		return took, sent, err
	}
	step.End(ui.Done, fmt.Sprintf("%.1fs, %.2f copies by the driver", took.Wall, sent))
	return took, sent, nil
}

// measureKilled brings the larger file to 48 nodes, of which a tenth lose their power on the way.
func (races *relayRaces) measureKilled(ctx context.Context) (string, error) {
	const n = 48
	killed := killedOf48()
	took, sent, err := races.pass(ctx, n, func(ctx context.Context) error {
		last := filepath.Join(races.fleet.Nodes[n-1].Home, passedFile+".part")
		for {
			if st, err := os.Stat(last); err == nil && st.Size() > passedSize/2 {
				break
			}
			if err := sleep(ctx, 100*time.Millisecond); err != nil {
				return err
			}
		}
		errs := make([]error, len(killed))
		var killing sync.WaitGroup
		for at, i := range killed {
			killing.Go(func() { errs[at] = races.fleet.Kill(i) })
		}
		killing.Wait()
		return errors.Join(errs...)
	})
	if err != nil {
		return "", err
	}
	var others []*nodes.Node
	for i, node := range races.fleet.Nodes[:n] {
		if !slices.Contains(killed, i) {
			others = append(others, node)
		} else if _, err := os.Stat(filepath.Join(node.Home, passedFile)); err == nil {
			return "", fmt.Errorf("%s had the whole file when it was killed", node.Name)
		}
	}
	if took.Status != 1 {
		return "", fmt.Errorf("with %d dead nodes it ended with status %d; its output is in %s", len(killed), took.Status, races.log.Name())
	}
	if err := errors.Join(races.mustHaveFile(passedFile, others), races.mustBeClean(others)); err != nil {
		return "", err
	}
	for _, i := range killed {
		err = errors.Join(err, races.fleet.Start(i))
	}
	return fmt.Sprintf("48 nodes, of which %d in the middle of the chain lose their power when the last node has half of the file: %.1f s, %.2f copies over the driver's link. "+
		"All others have the whole file, and no process and no other file is left on them.\n", len(killed), took.Wall, sent), err
}

// sleep waits, unless ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// mustBeClean makes sure that a relay has left nothing but the file on nodes.
func (races *relayRaces) mustBeClean(all []*nodes.Node) error {
	for i, node := range races.fleet.Nodes {
		if !slices.Contains(all, node) {
			continue
		}
		if races.fleet.Busy(i) {
			return fmt.Errorf("%s still works", node.Name)
		}
		for _, pattern := range []string{filepath.Join(node.Home, "*"), filepath.Join(node.Dir, "tmp", "*")} {
			files, _ := filepath.Glob(pattern) // a bad pattern finds none
			if rest := slices.DeleteFunc(files, func(file string) bool { return slices.Contains([]string{passedFile, ".bashrc"}, filepath.Base(file)) }); len(rest) > 0 {
				return fmt.Errorf("left on %s: %s", node.Name, strings.Join(rest, ", "))
			}
		}
	}
	return nil
}

// relayContenders bring the smaller file to the homes of the first n nodes. clush's tree has four
// nodes that pass the file on.
func relayContenders(n int) []contender {
	fill := fillLines(n)
	put := `bench put nodes/inventory.yaml {n} ` + racedFile + ` nodes/HOST/home `
	return []contender{
		{dsbuildName, fill(put + "auto"), nil},
		{dsbuildName + " --relay off", fill(put + "off"), nil},
		{"clush --copy, a tree", fill(`clush -S -q -f {n} -w {nodes} --topology topology.conf -o "-F $PWD/ssh_config" --copy ` + racedFile + ` --dest ./` + racedFile), nil},
		{pdcpName, fill(`pdcp -R ssh -f {n} -w {nodes} ` + racedFile + ` .`), []string{"PDSH_SSH_ARGS_APPEND=-F ssh_config"}},
		{"rsync", fill(`head -{n} hosts | xargs -P {n} -IHOST rsync -e 'ssh -F ssh_config' ` + racedFile + ` HOST:`), nil},
	}
}

// compareRelays compares the tools that copy a file, with the driver's link as slow as the nodes'.
func (races *relayRaces) compareRelays(ctx context.Context) (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", err
	}
	topology := fmt.Sprintf("[routes]\n%s: node[1-4]\nnode[1-4]: node[5-%d]\n", name, racedNodes)
	if err := os.WriteFile(filepath.Join(races.dir, "topology.conf"), []byte(topology), 0o644); err != nil {
		return "", err
	}
	var before int64
	rank, err := races.runRace(ctx, race{
		title: fmt.Sprintf("%s to %d nodes", ui.Size(racedSize), racedNodes), nodes: racedNodes, rounds: 1, contenders: relayContenders,
		before: func(contender, int) (_ []string, err error) {
			if err := races.emptyHomes(); err != nil {
				return nil, err
			}
			before, err = races.fleet.DriverSent()
			return nil, err
		},
		after: func(c contender, n int) error {
			sent, err := races.fleet.DriverSent()
			races.sent[c.name] = float64(sent-before) / racedSize
			return errors.Join(err, races.mustHaveFile(racedFile, races.fleet.Nodes[:n]))
		},
	})
	if err != nil {
		return "", err
	}
	var sent []string
	for _, c := range rank.contenders {
		sent = append(sent, fmt.Sprintf("%s %.2f", c.name, races.sent[c.name]))
	}
	return strings.Join([]string{
		rank.String(), "Copies over the driver's link: " + strings.Join(sent, "; ") + ".\n", rank.listCommands(),
	}, "\n"), races.emptyHomes()
}
