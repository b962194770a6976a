//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsbuild/dsbuild/ci/child"
	"github.com/dsbuild/dsbuild/ci/crowd"
	"github.com/dsbuild/dsbuild/deploy"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/scratch"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// What this program is besides, called again: many servers, and a driver that
// counts its goroutines.
const (
	crowdWord = "crowd"
	driveWord = "drive"
)

// fleetSizes returns the numbers of nodes whose cost is compared.
func fleetSizes() []int { return []int{1, 10, 100, 300, 1000} }

// grown is the cost of a fleet of one size for the driver.
type grown struct {
	nodes          int
	deploy, verify cost
	left           int // goroutines
}

// measureGrowth measures fleets of several sizes.
func (ws *workspace) measureGrowth(ctx context.Context) (finding, error) {
	var all []grown
	for _, n := range fleetSizes() {
		step := ws.ui.Step(fmt.Sprintf("%d servers in one process", n))
		g, err := ws.measureNodes(ctx, n)
		if err != nil {
			step.End(ui.Failed, "")
			return finding{}, fmt.Errorf("%d nodes: %w", n, err)
		}
		step.End(ui.Done, fmt.Sprintf("%.1fs, %s", g.deploy.Wall, ui.Size(g.deploy.Memory)))
		all = append(all, g)
	}
	return finding{growthText(all), map[string]string{"bench-growth.svg": growthPicture(all)}}, nil
}

// measureNodes measures one fleet. Its servers are a process of their own, so that
// the driver's memory is its own.
func (ws *workspace) measureNodes(ctx context.Context, n int) (grown, error) {
	g := grown{nodes: n}
	dir, err := scratch.New(memoryFolder())
	if err != nil {
		return g, err
	}
	defer dir.Close()
	wheel := filepath.Join(ws.dir, ws.real[0])
	stop, err := startCrowd(ctx, dir.Path, n, wheel)
	if err != nil {
		return g, err
	}
	defer stop()
	list := filepath.Join(dir.Path, "inventory.yaml")
	run := func(command string) (cost, error) {
		c, err := measureCommand(ctx, ws.dir, ws.commandEnv(), ws.log, fmt.Sprintf("dsbuild %s %s --wheel %s --verify files", command, list, wheel))
		if err == nil && c.Status != 0 {
			err = fmt.Errorf("dsbuild %s ended with status %d; what it said is in %s", command, c.Status, ws.log.Name())
		}
		return c, err
	}
	if g.left, err = ws.deployToFakes(ctx, list, wheel); err != nil {
		return g, err
	}
	if g.deploy, err = run("deploy --force"); err != nil {
		return g, err
	}
	g.verify, err = run("verify")
	return g, err
}

// memoryFolder is a folder in memory, for what servers are sent: a disk would be
// measured else. "": there is none.
func memoryFolder() string {
	const shm = "/dev/shm"
	if err := unix.Access(shm, unix.W_OK); err != nil {
		return ""
	}
	return shm
}

// startCrowd starts servers in a process of their own, and waits until they are there.
func startCrowd(ctx context.Context, dir string, n int, wheel string) (stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := child.Command(ctx, self, crowdWord, dir, fmt.Sprint(n), wheel)
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
		return nil, fmt.Errorf("the servers did not start: %w %s", err, line)
	}
	return stop, nil
}

// runCrowd is the main program of that process: servers until its input ends.
func runCrowd(args []string) error {
	var n int
	if len(args) != 3 {
		return errors.New("DIR N WHEEL")
	}
	if _, err := fmt.Sscan(args[1], &n); err != nil {
		return err
	}
	c, err := crowd.Up(crowd.Options{Dir: args[0], Count: n, Wheel: args[2]})
	if err != nil {
		return err
	}
	defer c.Stop()
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// deployToFakes deploys by a process that counts its goroutines before and after.
func (ws *workspace) deployToFakes(ctx context.Context, list, wheel string) (left int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, self, driveWord, list, wheel)
	cmd.Env, cmd.Stderr = ws.commandEnv(), ws.log
	out, err := cmd.Output()
	if err != nil {
		return 0, err
	}
	return left, json.Unmarshal(out, &left)
}

// runDrive is the main program of that process.
func runDrive(args []string) error {
	ctx := context.Background()
	if len(args) != 2 {
		return errors.New("INVENTORY WHEEL")
	}
	inv, err := inventory.Load(args[0])
	if err != nil {
		return err
	}
	wheels, err := deploy.LoadWheels(ctx, args[1], deploy.DefaultVerified())
	if err != nil {
		return err
	}
	console := ui.New(os.Stderr, ui.Options{})
	defer console.Close()
	before := runtime.NumGoroutine()
	d := deploy.New(deploy.Options{
		Hosts: inv.Hosts, KnownHosts: inv.KnownHosts, Wheels: wheels, Verify: deploy.VerifyFiles, By: "bench",
		Dialer: remote.WithSharing(remote.NewSSH(remote.Options{})), Reporter: console,
	})
	if _, err := d.Survey(ctx); err != nil {
		return err
	}
	report := d.Apply(ctx)
	d.Close()
	if err := report.Err(); err != nil {
		return err
	}
	time.Sleep(time.Second) // the last of them may be on their way out
	_, err = fmt.Println(runtime.NumGoroutine() - before)
	return err
}

// growthText is the table.
func growthText(all []grown) string {
	var b strings.Builder
	b.WriteString("![memory and time of the driver by the number of nodes](bench-growth.svg)\n\n")
	b.WriteString("| nodes | deploy: resident, MB | wall, s | driver's CPU, s | per node, ms | verify: resident, MB | wall, s | driver's CPU, s | goroutines left |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, g := range all {
		fmt.Fprintf(&b, "| %d | %d | %.2f | %.2f | %.1f | %d | %.2f | %.2f | %d |\n", g.nodes,
			g.deploy.Memory/1e6, g.deploy.Wall, g.deploy.CPU, g.deploy.CPU/float64(g.nodes)*1000, g.verify.Memory/1e6, g.verify.Wall, g.verify.CPU, g.left)
	}
	b.WriteString("\nThe servers run in a process of their own on the same cores, and answer from texts; the wall is theirs too.\n")
	return b.String()
}

func growthPicture(all []grown) string {
	memory, wall, cpu := curve{title: "resident, MB"}, curve{title: "wall, s"}, curve{title: "driver's CPU, s"}
	for _, g := range all {
		for c, v := range map[*curve]float64{&memory: float64(g.deploy.Memory) / 1e6, &wall: g.deploy.Wall, &cpu: g.deploy.CPU} {
			c.x, c.y = append(c.x, float64(g.nodes)), append(c.y, v)
		}
	}
	return drawCurves("dsbuild deploy to 1 … 1,000 nodes in one process", []curve{memory, wall, cpu})
}
