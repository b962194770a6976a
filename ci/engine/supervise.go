package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// superviseEngine is the parent of the engine and of its network. It ends when the engine does,
// and ends everything that is left then.
//
// If the supervisor itself is killed, the engine gets a SIGTERM (never a SIGKILL: an engine
// killed that way wipes its cache at the next start), and slirp4netns ends because its exit pipe
// closes.
func superviseEngine(l Layout) error {
	runtime.LockOSThread() // the parent-death signal is tied to the thread
	signal.Ignore(syscall.SIGHUP)
	stopping := make(chan os.Signal, 1)
	signal.Notify(stopping, syscall.SIGTERM, syscall.SIGINT)

	gateR, gateW, err := os.Pipe() // opened when the network is ready
	if err != nil {
		return err
	}
	engine := exec.Command("/proc/self/exe", "inner", l.Root)
	engine.Stdout, engine.Stderr, engine.ExtraFiles = os.Stdout, os.Stderr, []*os.File{gateR}
	engine.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGTERM,
	}
	if err := engine.Start(); err != nil {
		return fmt.Errorf("making the namespaces: %w", err)
	}
	gateR.Close()
	net, err := startNetwork(engine.Process.Pid)
	if err == nil {
		err = l.recordProcesses(engine.Process.Pid, net.cmd.Process.Pid)
	}
	if err != nil {
		gateW.Close() // the inner process gives up
		_ = engine.Wait()
		net.stop()
		return err
	}
	_, _ = gateW.Write([]byte{1})
	gateW.Close()
	go func() {
		for range stopping {
			_ = engine.Process.Signal(syscall.SIGTERM)
		}
	}()
	err = engine.Wait()
	net.stop()
	_ = os.Remove(l.Socket())
	sweepCgroups(cgroupRoot, l.cgroup())
	_ = os.Remove(l.recordFile())
	if err != nil {
		return fmt.Errorf("the engine ended: %w", err)
	}
	return nil
}

// recordProcesses writes the record of the running engine.
func (l Layout) recordProcesses(engine, network int) (err error) {
	r := record{Version: engineVersion, Since: time.Now()}
	if r.Supervisor, err = identifyProcess(l.Proc, os.Getpid()); err != nil {
		return err
	}
	if r.Engine, err = identifyProcess(l.Proc, engine); err != nil {
		return err
	}
	if r.Network, err = identifyProcess(l.Proc, network); err != nil {
		return err
	}
	return l.writeRecord(r)
}

// network is the slirp4netns process of an engine.
type network struct {
	cmd  *exec.Cmd
	exit *os.File // it ends when this closes
}

// startNetwork adds a route outside to the network namespace of a process, without any setup on
// the host, and waits until it works.
func startNetwork(pid int) (*network, error) {
	readyR, readyW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer readyR.Close()
	exitR, exitW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("slirp4netns", "--configure", "--mtu=1400", "--disable-host-loopback",
		"--ready-fd=3", "--exit-fd=4", strconv.Itoa(pid), "tap0")
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdout, os.Stderr, []*os.File{readyW, exitR}
	err = cmd.Start()
	readyW.Close()
	exitR.Close()
	if err != nil {
		exitW.Close()
		return nil, fmt.Errorf("starting the network: %w", err)
	}
	n := &network{cmd, exitW}
	if _, err := readyR.Read(make([]byte, 1)); err != nil {
		n.stop()
		return nil, fmt.Errorf("slirp4netns did not get ready (is /dev/net/tun there?): %w", err)
	}
	return n, nil
}

// stop ends the network process and waits for it.
func (n *network) stop() {
	if n == nil {
		return
	}
	n.exit.Close()
	late := time.AfterFunc(5*time.Second, func() { _ = n.cmd.Process.Signal(syscall.SIGTERM) })
	defer late.Stop()
	_ = n.cmd.Wait()
}

// cgroupRoot is the folder of the host's control groups: one tree, or one tree for each
// controller.
const cgroupRoot = "/sys/fs/cgroup"

// weighCgroup sets the CPU weight of all containers together to one process for each core, because a build runs as many
// jobs: next to ten other processes it would otherwise get an eleventh of the machine. Hosts without this control are
// left as they are.
func weighCgroup(root, name string, cores int) {
	dir, file, weight := filepath.Join(root, name), "cpu.weight", 100
	if _, err := os.Stat(filepath.Join(root, "cpu")); err == nil { // version 1 of control groups
		dir, file, weight = filepath.Join(root, "cpu", name), "cpu.shares", 1024
	}
	_ = os.Mkdir(dir, 0o755)
	if f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0); err == nil {
		_, _ = fmt.Fprint(f, min(weight*cores, 10000))
		_ = f.Close()
	}
}

// sweepCgroups removes the control groups of the engine's containers, deepest first. A group in
// use cannot be removed and stays.
func sweepCgroups(root, name string) {
	for _, pattern := range []string{name, "*/" + name} {
		tops, _ := filepath.Glob(filepath.Join(root, pattern))
		for _, top := range tops {
			var dirs []string
			_ = filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, p)
				}
				return nil
			})
			for _, d := range slices.Backward(dirs) {
				_ = syscall.Rmdir(d)
			}
		}
	}
}
