//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/scratch"
	"github.com/dsbuild/dsbuild/internal/testkit/child"
	"github.com/dsbuild/dsbuild/internal/testkit/manynodes"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// nodesWord makes this program run the nodes of a measurement.
const nodesWord = "nodes"

// fleetSizes returns the numbers of nodes whose cost is compared. The nodes of the largest fleet take 25 GB of disk;
// TestFullFleetTwoThousandNodes, with a small wheel, has more.
func fleetSizes() []int { return []int{1, 10, 100, 300, 1000} }

// grown is the cost of a fleet of one size for the controller.
type grown struct {
	nodes          int
	deploy, verify cost
}

// measureGrowth measures fleets of several sizes.
func (ws *workspace) measureGrowth(ctx context.Context) (string, error) {
	var all []grown
	for _, n := range fleetSizes() {
		ws.say("%d nodes of one process", n)
		g, err := ws.measureNodes(ctx, n)
		if err != nil {
			return "", fmt.Errorf("%d nodes: %w", n, err)
		}
		ws.say("  %.1f s, %s", g.deploy.Wall, ui.Size(g.deploy.Memory))
		all = append(all, g)
	}
	return growthText(all), nil
}

// measureNodes measures one fleet. The processes of its nodes are not children of dsbuild, so that
// the result is only the controller's cost.
func (ws *workspace) measureNodes(ctx context.Context, n int) (grown, error) {
	g := grown{nodes: n}
	dir, err := scratch.New(ws.dir)
	if err != nil {
		return g, err
	}
	defer dir.Close()
	stop, err := startManyNodes(ctx, dir.Path, n)
	if err != nil {
		return g, err
	}
	defer stop()
	list, wheel := filepath.Join(dir.Path, "inventory.yaml"), filepath.Join(ws.dir, ws.real[0])
	run := func(command string) (cost, error) {
		c, err := measureCommand(ctx, ws.dir, ws.commandEnv(), ws.log, fmt.Sprintf("dsbuild %s %s --wheel %s --verify files", command, list, wheel))
		if err == nil && c.Status != 0 {
			err = fmt.Errorf("dsbuild %s exited with status %d; output: %s", command, c.Status, ws.log.Name())
		}
		return c, err
	}
	if g.deploy, err = run("deploy"); err != nil {
		return g, err
	}
	g.verify, err = run("verify")
	return g, err
}

// startManyNodes starts nodes in a separate process and waits until they are ready.
func startManyNodes(ctx context.Context, dir string, n int) (stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := child.Command(ctx, self, nodesWord, dir, fmt.Sprint(n))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() {
		in.Close()
		cmd.Wait() //nolint:errcheck // it was asked to end
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		stop()
		return nil, fmt.Errorf("the nodes did not start: %w %s", err, line)
	}
	return stop, nil
}

// runManyNodes is the main program of that process. It runs nodes until its input ends.
func runManyNodes(args []string) error {
	if len(args) != 2 {
		return errors.New("DIR N")
	}
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	fleet, err := manynodes.Up(context.Background(), args[0], n)
	if err != nil {
		return err
	}
	defer fleet.Down()
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// growthText is the table.
func growthText(all []grown) string {
	var b strings.Builder
	b.WriteString("| nodes | deploy: resident, MB | wall, s | controller's CPU, s | per node, ms | verify: resident, MB | wall, s | controller's CPU, s |\n|---|---|---|---|---|---|---|---|\n")
	for _, g := range all {
		fmt.Fprintf(&b, "| %d | %d | %.2f | %.2f | %.1f | %d | %.2f | %.2f |\n", g.nodes,
			g.deploy.Memory/1e6, g.deploy.Wall, g.deploy.CPU, g.deploy.CPU/float64(g.nodes)*1000, g.verify.Memory/1e6, g.verify.Wall, g.verify.CPU)
	}
	b.WriteString("\nThe nodes run dsbuild's programs on the same cores as the controller: they use nearly all of the wall time.\n")
	return b.String()
}
