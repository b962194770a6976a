//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsbuild/dsbuild/ci/child"
)

// cost is the time and memory that a command used.
type cost struct {
	Wall   float64 `json:"wall"`   // seconds until it ended
	CPU    float64 `json:"cpu"`    // seconds, user and system, of it and of all processes that it started
	Memory int64   `json:"memory"` // peak resident bytes of the largest of its processes
	Status int     `json:"status"` // exit status
}

// meterWord makes this program the meter of another one: see meter.
const meterWord = "meter"

// measureCommand runs a shell line in dir and returns its cost. A process of its own starts the
// line and adopts the processes that the line leaves behind. So the measurement also ends and
// counts background processes (ssh's master connections, which Ansible makes).
func measureCommand(ctx context.Context, dir string, env []string, out io.Writer, line string) (cost, error) {
	self, err := os.Executable()
	if err != nil {
		return cost{}, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return cost{}, err
	}
	defer r.Close()
	cmd := child.Command(ctx, self, meterWord, "bash", "-c", line)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = dir, env, out, out, []*os.File{w}
	parent, err := cmd.StdinPipe() // closes when this process ends, even after a crash
	if err != nil {
		w.Close()
		return cost{}, err
	}
	defer parent.Close()
	err = cmd.Start()
	w.Close()
	if err != nil {
		return cost{}, err
	}
	var c cost
	decoded := json.NewDecoder(r).Decode(&c)
	err = errors.Join(cmd.Wait(), decoded)
	if ctx.Err() != nil {
		return c, ctx.Err()
	}
	return c, err
}

// runMeter is the main program of that process. The cost goes to file descriptor 3.
func runMeter(argv []string) error {
	result := os.NewFile(3, "result")
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	// A signal to end goes to the whole process group: the meter survives it to clean up.
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	go func() {
		io.Copy(io.Discard, os.Stdin)        //nolint:errcheck // its end is all that counts
		_ = syscall.Kill(0, syscall.SIGTERM) // its own group is there
	}()
	begin := time.Now()
	err := cmd.Run()
	c := cost{Wall: time.Since(begin).Seconds(), Status: cmd.ProcessState.ExitCode()}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return err
	}
	if err := endChildren(10 * time.Second); err != nil {
		return err
	}
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u); err != nil {
		return err
	}
	c.CPU, c.Memory = cpuOf(u).Seconds(), u.Maxrss<<10
	return json.NewEncoder(result).Encode(c)
}

func cpuOf(u syscall.Rusage) time.Duration {
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// endChildren ends the processes that this process has adopted, and their orphans.
func endChildren(limit time.Duration) error {
	sig := syscall.SIGTERM
	for deadline := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		left := childrenOf(os.Getpid())
		if len(left) == 0 {
			return nil
		}
		for _, p := range left {
			syscall.Kill(p.pid, sig)                        //nolint:errcheck // it may have ended
			syscall.Wait4(p.pid, nil, syscall.WNOHANG, nil) //nolint:errcheck // likewise
		}
		if time.Now().After(deadline) {
			if sig == syscall.SIGKILL {
				return fmt.Errorf("processes do not end: %v", left)
			}
			sig, deadline = syscall.SIGKILL, time.Now().Add(limit)
		}
	}
}

// process is a line of the table of processes.
type process struct {
	pid, parent int
	name, state string
	ticks       int64 // of CPU time: its own and that of ended children it has waited for
}

func (p process) String() string { return fmt.Sprintf("%d (%s)", p.pid, p.name) }

// childrenOf returns the processes whose parent is pid.
func childrenOf(pid int) []process {
	var found []process
	for _, p := range readProcesses() {
		if p.parent == pid {
			found = append(found, p)
		}
	}
	return found
}

// readProcesses reads the table of processes.
func readProcesses() []process {
	files, _ := filepath.Glob("/proc/[0-9]*/stat") // a bad pattern finds none
	var all []process
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		var p process
		if p.parse(string(text)) == nil {
			all = append(all, p)
		}
	}
	return all
}

// parse reads /proc/PID/stat: pid (name) state parent …; the name may hold anything.
func (p *process) parse(text string) error {
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return errors.New("no name")
	}
	p.name = text[open+1 : end]
	if _, err := fmt.Sscan(text[:open], &p.pid); err != nil {
		return err
	}
	var skip string
	var own, system, waited, waitedSystem int64
	_, err := fmt.Sscan(text[end+1:], &p.state, &p.parent, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip,
		&own, &system, &waited, &waitedSystem)
	p.ticks = own + system + waited + waitedSystem
	return err
}
