//go:build linux

package slurm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/debian"
)

// ensurePrograms makes sure that the programs of a cluster exist.
func ensurePrograms(ctx context.Context, log func(line string)) error {
	if os.Geteuid() != 0 {
		return fault.WithHint(fmt.Errorf("%w: it makes mount, process and network namespaces, which needs root", ErrUnavailable), "run it as root")
	}
	namespaces := exec.CommandContext(ctx, "true")
	namespaces.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET}
	if err := namespaces.Run(); err != nil {
		return fault.WithHint(fmt.Errorf("%w: root may not make namespaces here: %w", ErrUnavailable, err), "in a container, start it with --privileged")
	}
	have := debian.OnPath("slurmctld", "slurmd", "sbatch", "munged", "ip", "nsenter", "unshare", "setpriv", "flock")
	if have() {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fault.WithHint(fmt.Errorf("%w: this is not Debian, and its programs are missing", ErrUnavailable),
			"install Slurm (slurmctld, slurmd and the commands), munge, iproute2 and util-linux")
	}
	log("installing slurm-wlm and munge (apt-get) …")
	if err := debian.Ensure(ctx, have, "slurm-wlm", "munge", "iproute2"); err != nil {
		return fmt.Errorf("%w, and installing it failed: %w", ErrUnavailable, err)
	}
	return nil
}
