//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// The relay's nodes and files. On links so slow, two cores are idle most of the time, and the links
// alone decide how long a copy takes. A star of the larger file to all nodes would take half an hour.
const (
	relayNodes = 64
	linkSpeed  = nodes.Rate(20) // Mbit/s, of the controller and of each node
	passedFile = "passed.bin"
	passedSize = 100_000_000
	racedFile  = "raced.bin"
	racedSize  = 10_000_000
	racedNodes = 16
)

// relaySizes returns the numbers of nodes that get the larger file.
func relaySizes() []int { return []int{1, 4, 16, 48, relayNodes} }

// relayRaces measures copies over slow links.
type relayRaces struct {
	fleetRaces
	sent map[string]float64 // copies of the file that the controller's link carried in the last run, by contender
}

// measureRelay compares relaying a file through the nodes with sending it to each from the controller,
// on separate nodes.
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
	rank, err := races.compareRelays(ctx)
	if err != nil {
		return growth, err
	}
	return strings.Join([]string{
		fmt.Sprintf("Links of %d Mbit/s in both directions, for the controller and for each node. Load average of the machine before: %s.\n",
			linkSpeed, strings.Join(strings.Fields(string(load))[:3], ", ")),
		growth, rank, races.listTools(),
	}, "\n"), nil
}

// startSlowNodes starts nodes with slow links.
func (ws *workspace) startSlowNodes(ctx context.Context) (*relayRaces, error) {
	own := *ws
	own.dir = filepath.Join(ws.dir, "relay")
	ws.say("%d nodes with links of %d Mbit/s", relayNodes, linkSpeed)
	fleet, err := nodes.Up(ctx, nodes.Options{Dir: filepath.Join(own.dir, "nodes"), Count: relayNodes, Env: nodes.FakeTorch, Networks: true, Log: ws.logLine})
	if err != nil {
		return nil, err
	}
	own.fleet, own.gauge = fleet, &gauge{fleet: fleet}
	own.gauge.passOver() // the nodes of other parts, and the processes that hold the networks
	races := &relayRaces{fleetRaces{&own}, map[string]float64{}}
	err = errors.Join(fleet.Shape(linkSpeed, linkSpeed), own.writeConfigs(), races.emptyHomes(), races.makeFile(passedFile, passedSize), races.makeFile(racedFile, racedSize))
	if err != nil {
		return nil, errors.Join(err, fleet.Down())
	}
	return races, nil
}

// putLine returns the command that sends the larger file to n nodes.
func putLine(n int) string {
	return fmt.Sprintf("bench put nodes/inventory.yaml %d %s nodes/HOST/home auto", n, passedFile)
}

// measureSizes sends the larger file to more and more nodes.
func (races *relayRaces) measureSizes(ctx context.Context) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s to | wall, s | × 1 node | copies over the controller's link | controller's CPU, s |\n|---|---|---|---|---|\n", ui.Size(passedSize))
	one := 0.0
	for _, n := range relaySizes() {
		took, sent, err := races.pass(ctx, n)
		if err == nil && took.Status != 0 {
			err = fmt.Errorf("%d nodes: exited with status %d; output: %s", n, took.Status, races.log.Name())
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

// pass sends the larger file to n nodes and returns how many copies of it the controller's link
// carried.
func (races *relayRaces) pass(ctx context.Context, n int) (took cost, sent float64, err error) {
	if err := races.emptyHomes(); err != nil {
		return took, 0, err
	}
	syscall.Sync()
	races.say("%s to %s", ui.Size(passedSize), ui.Count(n, "node"))
	limited, cancel := context.WithTimeoutCause(ctx, commandLimit, fmt.Errorf("not done within %s", commandLimit))
	defer cancel()
	before, err := races.fleet.ControllerSent()
	if err != nil {
		return took, 0, err
	}
	if took, err = races.measure(limited, putLine(n)); err != nil {
		return took, 0, err
	}
	after, err := races.fleet.ControllerSent()
	return took, float64(after-before) / passedSize, err
}

// relayContenders copy the smaller file to the homes of the first n nodes. clush's tree has four
// relaying nodes.
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

// compareRelays compares the tools that copy a file, with the controller's link as slow as the nodes'.
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
			before, err = races.fleet.ControllerSent()
			return nil, err
		},
		after: func(c contender, n int) error {
			sent, err := races.fleet.ControllerSent()
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
		rank.String(), "Copies over the controller's link: " + strings.Join(sent, "; ") + ".\n",
	}, "\n"), races.emptyHomes()
}
