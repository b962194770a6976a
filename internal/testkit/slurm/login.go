//go:build linux

package slurm

import (
	"context"
	"os/exec"
	"strconv"

	"github.com/dsbuild/dsbuild/internal/testkit/child"
)

// Env is the whole environment of commands on the login node. It has none of the caller's
// variables, so also none of a Slurm job in which the caller may run.
func (c *Cluster) Env() []string { return c.envOf("root") }

func (c *Cluster) envOf(user string) []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + c.Home, "USER=" + user, "LOGNAME=" + user, "SHELL=/bin/bash", "LANG=C.UTF-8",
		"SLURM_CONF=" + c.etcPath("slurm.conf"),
	}
}

// Command is a command on the login node, as root: sbatch, srun, scontrol or any other. The
// login node has this machine's files, but its own network, processes and hosts. The folder is
// Home and the environment is the cluster's; the caller may change both. The command ends with
// ctx, and with the cluster.
func (c *Cluster) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return c.enterCommand(ctx, nil, append([]string{name}, args...)...)
}

// UserCommand is Command as User instead of root. The files that it reads and writes must be in
// Home.
func (c *Cluster) UserCommand(ctx context.Context, name string, args ...string) *exec.Cmd {
	id := strconv.Itoa(UserID)
	cmd := c.enterCommand(ctx, []string{"--setuid=" + id, "--setgid=" + id}, append([]string{name}, args...)...)
	cmd.Env = c.envOf(User)
	return cmd
}

// enterCommand returns a command that runs in the head's namespaces. The shell gets its folder
// by name, and keeps it.
func (c *Cluster) enterCommand(ctx context.Context, flags []string, command ...string) *exec.Cmd {
	const script = `exec nsenter --mount --uts --ipc --net --pid --wdns="$PWD" "$@"`
	args := append([]string{"-c", script, "sh", "--target=" + strconv.Itoa(c.life.head)}, flags...)
	cmd := child.Command(ctx, "/bin/sh", append(append(args, "--"), command...)...)
	cmd.Dir, cmd.Env = c.Home, c.Env()
	return cmd
}
