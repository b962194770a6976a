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

// cost is what a command took where it was started.
type cost struct {
	Wall   float64 `json:"wall"`   // seconds until it ended
	CPU    float64 `json:"cpu"`    // seconds, user and system, of it and of all that it started
	Memory int64   `json:"memory"` // bytes that the largest of its processes had resident at most
	Status int     `json:"status"` // exit status
}

// meterWord makes this program the meter of another one: see meter.
const meterWord = "meter"

// metered runs a shell line in dir and says what it took. It is started by a
// process of its own that everything it leaves behind falls to, so that what
// goes into the background (ssh's master connections, which Ansible makes) is
// ended and counted too.
func metered(ctx context.Context, dir string, env []string, out io.Writer, line string) (cost, error) {
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
	parent, err := cmd.StdinPipe() // ends with this process, however that ends
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

// meter is the main program of that process. The cost goes to file descriptor 3.
func meter(argv []string) error {
	result := os.NewFile(3, "result")
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	// Whoever asks it to end asks all of its group: it stays to tidy up.
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	go func() {
		io.Copy(io.Discard, os.Stdin) //nolint:errcheck // its end is all that counts
		syscall.Kill(0, syscall.SIGTERM)
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

// endChildren ends all that this process has inherited, and what that leaves behind.
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

// childrenOf are the processes whose parent is pid.
func childrenOf(pid int) []process {
	var found []process
	for _, p := range processes() {
		if p.parent == pid {
			found = append(found, p)
		}
	}
	return found
}

// processes is the table of processes.
func processes() []process {
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
