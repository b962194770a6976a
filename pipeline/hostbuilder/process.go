package hostbuilder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// How long the processes of a step may take to end when they are asked to, and
// when they are made to.
const (
	termTime = 5 * time.Second
	killTime = 10 * time.Second
)

// process is a program and all that it starts. It runs in a session of its
// own: process groups would not do, since ninja gives each compiler one.
type process struct {
	argv           []string
	dir            string
	env            []string
	stdin          *os.File  // nil: an empty one
	stdout, stderr io.Writer // never at the same time where they are the same
}

// run runs the program to its end. Whatever it has started and left behind ends
// with it, and all of it does when ctx is cancelled.
func (p process) run(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	path, err := lookPath(p.argv[0], p.env)
	if err != nil {
		return err
	}
	// The modes of files end up in wheels: as in a container, whatever the
	// user's mask is. What is private lies in directories that are.
	cmd := exec.Command("/bin/sh", append([]string{"-c", `umask 022; exec "$@"`, "sh", path}, p.argv[1:]...)...)
	cmd.Dir, cmd.Env = p.dir, p.env
	cmd.SysProcAttr = ownSession()
	if p.stdin != nil {
		cmd.Stdin = p.stdin
	}
	copied, err := pipes(cmd, p.stdout, p.stderr)
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		copied()
		return err
	}
	sid := cmd.Process.Pid
	done := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		select {
		case <-ctx.Done():
			ended <- end(sid)
		case <-done:
			ended <- nil
		}
	}()
	err = cmd.Wait()
	close(done)
	// The rest of the session, and with it the last writers to the pipes.
	left := errors.Join(<-ended, end(sid))
	copied()
	if ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), left)
	}
	return errors.Join(err, left)
}

// pipes connects a program's output with the writers; copied waits until all
// of it has been written.
func pipes(cmd *exec.Cmd, stdout, stderr io.Writer) (copied func(), err error) {
	var ends []*os.File
	done := make(chan struct{}, 2)
	for _, stream := range []struct {
		to    io.Writer
		child *io.Writer
	}{{stdout, &cmd.Stdout}, {stderr, &cmd.Stderr}} {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		ends = append(ends, w)
		*stream.child = w
		go func() {
			_, _ = io.Copy(stream.to, r) // a writer that fails must not stop the build
			_, _ = io.Copy(io.Discard, r)
			r.Close()
			done <- struct{}{}
		}()
	}
	return func() {
		for _, w := range ends {
			w.Close()
		}
		<-done
		<-done
	}, nil
}

// lookPath finds a program on the PATH of an environment, not on ours.
func lookPath(name string, environ []string) (string, error) {
	if filepath.IsAbs(name) {
		return name, nil
	}
	for _, dir := range filepath.SplitList(read(environ)["PATH"]) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}

// end ends all processes of a session: it asks, waits, and then makes them.
func end(sid int) error {
	for _, round := range []struct {
		signal syscall.Signal
		limit  time.Duration
	}{{syscall.SIGTERM, termTime}, {syscall.SIGKILL, killTime}} {
		deadline := time.Now().Add(round.limit)
		asked := map[int]bool{}
		for {
			pids := session(sid)
			if len(pids) == 0 {
				return nil
			}
			for _, pid := range pids {
				// Each once, for some count; new ones as they come.
				if !asked[pid] {
					asked[pid] = true
					kill(pid, round.signal)
				}
			}
			if time.Now().After(deadline) {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	return fmt.Errorf("processes of this step do not end: %v", session(sid))
}

// session lists the living processes of a session.
func session(sid int) []int {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	var pids []int
	for _, file := range stats {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		pid, state, of := parseStat(text)
		if of == sid && state != 'Z' && state != 'X' {
			pids = append(pids, pid)
		}
	}
	return pids
}

// parseStat reads a process, its state and its session out of /proc/N/stat. The
// program's name stands in parentheses and may hold anything.
func parseStat(text []byte) (pid int, state byte, sid int) {
	open, shut := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 1 || shut < open {
		return 0, 0, 0
	}
	fields := bytes.Fields(text[shut+1:])
	if len(fields) < 4 {
		return 0, 0, 0
	}
	pid, _ = strconv.Atoi(string(bytes.TrimSpace(text[:open])))
	sid, _ = strconv.Atoi(string(fields[3]))
	return pid, fields[0][0], sid
}
