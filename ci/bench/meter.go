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
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsbuild/dsbuild/internal/testkit/child"
	"github.com/dsbuild/dsbuild/internal/testkit/proc"
)

// cost is the time and memory that a command used.
type cost struct {
	Wall   float64 `json:"wall"`   // seconds until it ended
	CPU    float64 `json:"cpu"`    // seconds, user and system, of it and of all processes that it started
	Memory int64   `json:"memory"` // peak resident bytes of the largest of its processes
	Status int     `json:"status"` // exit status
}

// meterWord is the argument with which this program runs as a meter.
const meterWord = "meter"

// measureCommand runs a shell line in dir and returns its cost. A separate process starts the line
// and adopts the processes that the line leaves behind, so that background processes (Ansible's ssh
// masters) are also counted and ended.
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
			syscall.Kill(p.PID, sig)                        //nolint:errcheck // it may have ended
			syscall.Wait4(p.PID, nil, syscall.WNOHANG, nil) //nolint:errcheck // it may have ended
		}
		if time.Now().After(deadline) {
			if sig == syscall.SIGKILL {
				return fmt.Errorf("processes do not end: %v", left)
			}
			sig, deadline = syscall.SIGKILL, time.Now().Add(limit)
		}
	}
}

// childrenOf returns the processes whose parent is pid.
func childrenOf(pid int) []proc.Process {
	return slices.DeleteFunc(proc.All(), func(p proc.Process) bool { return p.Parent != pid })
}
