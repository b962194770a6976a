package jobrunner

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"syscall"

	"github.com/dsbuild/dsbuild/internal/remote"
)

// Local is the local machine as a node of a job.
type Local struct{}

// Run implements remote.Runner.
func (Local) Run(ctx context.Context, c remote.Command) error {
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	cmd.Stdout, cmd.Stderr = c.Stdout, c.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = killTimeout
	// A pipe, because the program may end before it has read everything.
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		io.Copy(in, c.Stdin) //nolint:errcheck // the program's exit code decides
		in.Close()           //nolint:errcheck // the program's exit code decides
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return &remote.ExitError{Code: exit.ExitCode()}
	}
	return err
}

// Close implements Conn.
func (Local) Close() error { return nil }

// OpenLocal is Machine.Open for the local machine.
func OpenLocal(context.Context) (Conn, error) { return Local{}, nil }
