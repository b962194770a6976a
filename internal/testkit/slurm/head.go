//go:build linux

package slurm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/child"
)

// life holds the processes and files that keep a cluster alive and end it.
type life struct {
	head  int             // the pid of the head's first process on this machine
	lease *os.File        // the cluster lives until this file is closed
	guard *exec.Cmd       // removes the folder, however this program ends
	ended <-chan struct{} // closed when the head's first process has ended
	once  sync.Once
}

// startHead starts the guard, writes the cluster's folder and starts the cluster's first
// process.
func (c *Cluster) startHead(lock *os.File) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	c.life.lease = w
	if err := c.startGuard(r); err != nil {
		return err
	}
	if err := c.fillFolder(); err != nil {
		return err
	}
	log, err := os.Create(c.log("head"))
	if err != nil {
		return err
	}
	defer log.Close()
	ready, wait, err := openReadiness()
	if err != nil {
		return err
	}
	cmd := c.headCommand(r, log, lock, ready)
	err = cmd.Start()
	ready.Close()
	if err != nil {
		return fmt.Errorf("making namespaces: %w", err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	c.life.head, c.life.ended = cmd.Process.Pid, ended
	if !wait() {
		return errors.New("its setup failed: " + readLastLine(c.log("head")))
	}
	return nil
}

// headCommand is the first process of the cluster, in namespaces of its own.
func (c *Cluster) headCommand(input, log *os.File, extra ...*os.File) *exec.Cmd {
	cmd := exec.Command("bash", filepath.Join(c.Dir, "scripts", "head.sh"))
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = "/", input, log, log, extra
	cmd.Env = append(c.Env(), "DIR="+c.Dir, "HEAD="+headAddress, "PYENV="+c.env)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	return cmd
}

// openReadiness returns a file to which a process writes a line when it is ready, and a function
// that waits for this line. The function returns false if the process ends first or takes too
// long.
func openReadiness() (ready *os.File, wait func() bool, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	return w, func() bool {
		defer r.Close()
		_ = r.SetReadDeadline(time.Now().Add(time.Minute))
		n, _ := r.Read(make([]byte, 1))
		return n == 1
	}, nil
}

// startGuard starts the guard: a process that removes the folder after the cluster has ended and
// the holder of the lease is gone, even if this program is killed.
func (c *Cluster) startGuard(lease *os.File) error {
	const script = `read -r _
cd /
while [ -e "$1/lock" ] && ! flock "$1/lock" rm -rf --one-file-system "$1"; do sleep 0.1; done
rmdir "$2" 2>/dev/null
exit 0`
	c.life.guard = exec.Command("sh", "-c", script, "sh", c.Dir, home)
	c.life.guard.Stdin = lease
	c.life.guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a Ctrl-C must not reach it
	return c.life.guard.Start()
}

// Down ends all processes of the cluster and removes its folder.
func (c *Cluster) Down() (err error) {
	c.life.once.Do(func() { err = c.stop() })
	return err
}

func (c *Cluster) stop() error {
	if c.life.ended != nil {
		_ = syscall.Kill(c.life.head, syscall.SIGKILL) // a child process that ended at most a moment ago
		<-c.life.ended
	}
	c.life.lease.Close()
	if err := c.life.guard.Wait(); err != nil {
		return fmt.Errorf("removing %s: %w", c.Dir, err)
	}
	return nil
}

func (c *Cluster) log(of string) string { return filepath.Join(c.Dir, "log", of+".log") }

// Logs returns the last lines of every log of the cluster, for an error: the folder is removed.
func (c *Cluster) Logs() string {
	var b strings.Builder
	found, _ := filepath.Glob(c.log("*")) //nolint:errcheck // the pattern is right
	for _, file := range found {
		text, err := os.ReadFile(file)
		if err != nil || len(text) == 0 {
			continue
		}
		for line := range strings.SplitSeq(child.LastLines(text, 8), "\n") {
			fmt.Fprintf(&b, "\n    %s: %s", filepath.Base(file), line)
		}
	}
	return b.String()
}

// waitUntilReady waits until the controller reports that all these nodes accept jobs.
func (c *Cluster) waitUntilReady(ctx context.Context, nodes ...*Node) error {
	for end := time.Now().Add(60 * time.Second); ; {
		states, err := c.States(ctx)
		missing := ""
		for _, n := range nodes {
			if states[n.Name] != "idle" {
				missing += " " + n.Name + " (" + states[n.Name] + ")"
			}
		}
		switch {
		case err == nil && missing == "":
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(end):
			return errors.Join(fmt.Errorf("these nodes do not get ready:%s", missing), err)
		}
		select {
		case <-c.life.ended:
			return errors.New("the login node ended")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// States returns the nodes' states as sinfo prints them: "idle", "allocated", "down*"; the
// asterisk means that the node does not respond.
func (c *Cluster) States(ctx context.Context) (map[string]string, error) {
	cmd := c.Command(ctx, "sinfo", "--noheader", "--Node", "--format=%N %T")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("sinfo: %w: %s", err, strings.TrimSpace(said.String()))
	}
	states := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		if name, state, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			states[name] = state
		}
	}
	return states, nil
}
