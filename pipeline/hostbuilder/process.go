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

// The time that the processes of a step have to end after SIGTERM, and after SIGKILL.
const (
	termTime = 5 * time.Second
	killTime = 10 * time.Second
)

// process is a program and all processes that it starts. It runs in its own session: a process
// group is not enough, because ninja creates one for each compiler.
type process struct {
	argv           []string
	dir            string
	env            []string
	stdout, stderr io.Writer // never at the same time where they are the same
}

// run runs the program, and kills the processes that it left behind. If ctx is cancelled, it kills
// all of them.
func (p process) run(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	path, err := lookPath(p.argv[0], p.env)
	if err != nil {
		return err
	}
	// The modes of files get into wheels, so the umask is a container's, not the user's.
	// Private files are in directories that others cannot enter.
	cmd := exec.Command("/bin/sh", append([]string{"-c", `umask 022; exec "$@"`, "sh", path}, p.argv[1:]...)...)
	cmd.Dir, cmd.Env = p.dir, p.env
	cmd.SysProcAttr = ownSession()
	cmd.Stdout, cmd.Stderr = p.stdout, p.stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	sid := cmd.Process.Pid
	done := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		select {
		case <-ctx.Done():
			ended <- endSession(sid)
		case <-done:
			ended <- nil
		}
	}()
	state, err := cmd.Process.Wait()
	if err == nil && !state.Success() {
		err = &exec.ExitError{ProcessState: state}
	}
	close(done)
	// The rest of the session, and with it the last writers to the pipes: only then does Wait return.
	left := errors.Join(<-ended, endSession(sid))
	_ = cmd.Wait()
	if ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), left)
	}
	return errors.Join(err, left)
}

// lookPath finds a program on the PATH of an environment, not on that of dsbuild.
func lookPath(name string, environ []string) (string, error) {
	if filepath.IsAbs(name) {
		return name, nil
	}
	for _, dir := range filepath.SplitList(parseEnviron(environ)["PATH"]) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}

// endSession ends all processes of a session: it sends a first signal, waits, and then kills the
// rest.
func endSession(sid int) error {
	for _, round := range []struct {
		signal syscall.Signal
		limit  time.Duration
	}{{syscall.SIGTERM, termTime}, {syscall.SIGKILL, killTime}} {
		deadline := time.Now().Add(round.limit)
		asked := map[int]bool{}
		for {
			pids := sessionProcesses(sid)
			if len(pids) == 0 {
				return nil
			}
			for _, pid := range pids {
				// Each process gets the signal once, because some count signals; new processes
				// get it as they appear.
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
	return fmt.Errorf("cannot end processes of this step: %v", sessionProcesses(sid))
}

// sessionProcesses lists the living processes of a session.
func sessionProcesses(sid int) []int {
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

// parseStat reads the process id, the state and the session from /proc/N/stat. The program's name
// stands in parentheses and may hold anything.
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
