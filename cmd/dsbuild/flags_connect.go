package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/slurm"
	"github.com/dsbuild/dsbuild/inventory"
)

// The ways to nodes.
const (
	viaSSH   = "ssh"
	viaSlurm = "slurm"
)

// sshAuto is the default of --ssh.
const sshAuto = string(remote.Auto)

// connectOptions are the flags that say how to reach nodes.
type connectOptions struct {
	via       string
	ssh       string
	partition string
	account   string
	qos       string
	time      string
	wait      time.Duration
	salloc    []string
}

// slurmWait is the default of --slurm-wait.
const slurmWait = time.Minute

// addConnectFlags gives a command the flags of connectOptions.
func addConnectFlags(cmd *cobra.Command, opts *connectOptions) {
	flags := cmd.Flags()
	flags.StringVar(&opts.via, "via", viaSSH, "reach the nodes by `ssh|slurm` (slurm: in a job of your own, with salloc and srun)")
	flags.StringVar(&opts.ssh, "ssh", sshAuto,
		"SSH client: `auto|native|openssh` (native: dsbuild itself; openssh: the system's ssh; auto: dsbuild, and ssh for nodes "+
			"whose ssh configuration needs it)")
	flags.StringVar(&opts.partition, "partition", "",
		"with --via slurm: request the nodes in this `PARTITION` (default: a partition of each node)")
	flags.StringVar(&opts.account, "account", "", "with --via slurm: the job's `ACCOUNT`")
	flags.StringVar(&opts.qos, "qos", "", "with --via slurm: the job's `QOS`")
	flags.StringVar(&opts.time, "time", "", "with --via slurm: the job's time limit, as Slurm's `TIME`: 30, 2:00:00")
	flags.DurationVar(&opts.wait, "slurm-wait", slurmWait, "with --via slurm: how long to wait for busy nodes, as `DURATION`: 90s, 2h")
	flags.StringArrayVar(&opts.salloc, "salloc", nil,
		"with --via slurm: one more `OPTION` of salloc, such as --salloc=--reservation=maint or --salloc=--gres=gpu:1; repeatable")
}

// checkFlags checks the values of flags beyond their types.
func (o connectOptions) checkFlags() error {
	switch o.via {
	case viaSlurm:
		if o.ssh != sshAuto {
			return usagef("--ssh does not work with --via slurm: dsbuild then uses no SSH")
		}
		if o.wait < time.Second {
			return usagef("--slurm-wait %s: must be 1s or more", o.wait)
		}
		for _, option := range o.salloc {
			if why := sallocRefusal(option); why != "" {
				return usagef("--salloc=%s: %s", option, why)
			}
		}
		return nil
	case viaSSH:
	default:
		return oneOf("via", o.via, viaSSH, viaSlurm)
	}
	if err := oneOf("ssh", o.ssh, sshAuto, string(remote.Native), string(remote.OpenSSH)); err != nil {
		return err
	}
	if o.ssh == string(remote.OpenSSH) {
		if _, err := remote.FindOpenSSH(context.Background()); err != nil {
			return &usageError{err: fmt.Errorf("--ssh openssh: %w", err), hint: fault.Hint(err)}
		}
	}
	for flag, given := range map[string]bool{
		"partition": o.partition != "", "account": o.account != "", "qos": o.qos != "", "time": o.time != "",
		"slurm-wait": o.wait != slurmWait, "salloc": len(o.salloc) > 0,
	} {
		if given {
			return usagef("--%s needs --via slurm", flag)
		}
	}
	return nil
}

// sallocRefusal says why an option cannot be passed to salloc; "" if it can.
func sallocRefusal(option string) string {
	name, _, hasValue := strings.Cut(option, "=")
	switch {
	case !strings.HasPrefix(option, "--") || strings.ContainsAny(name, " \t"):
		return "must be a long option with = before its value: --salloc=--gres=gpu:1"
	case slices.Contains([]string{"--partition", "--account", "--qos", "--time"}, name) && hasValue:
		return "say " + option + " to dsbuild"
	case slices.Contains([]string{
		"--nodes", "--nodelist", "--exclude", "--nodefile", "--jobid", "--no-shell", "--immediate", "--kill-command",
		"--ntasks", "--ntasks-per-node", "--cpus-per-task",
	}, name):
		return "dsbuild sets that itself"
	}
	return ""
}

// addDialer gives a fleet its way to the nodes of an inventory.
func (o connectOptions) addDialer(ctx context.Context, a *app, inv *inventory.Inventory, opt *fleet.Options) error {
	if o.via != viaSlurm {
		// As ssh would: a connection that fails for a passing reason is tried again.
		opt.Asks = a.prompt != nil
		answers := remote.NewAnswers(a.prompt)
		askpass, err := os.Executable()
		if err != nil {
			return err
		}
		ssh := remote.NewSSH(remote.Options{
			Client: remote.Client(o.ssh), Answers: answers, Askpass: askpass, Tries: 3,
			Note: func(text string) { a.reporter.Note("%s", text) },
		})
		opt.Dialer = remote.WithSudo(ssh, answers, remote.SudoLimit)
		return nil
	}
	var nodes []string
	for _, h := range inv.Hosts {
		if !slices.Contains(nodes, h.Node) {
			nodes = append(nodes, h.Node)
		}
	}
	// It has no retry: a busy node waits in Slurm's own queue, and a
	// connection is only the right to start programs in a job.
	if slices.ContainsFunc(inv.Hosts, func(h inventory.Host) bool {
		return h.User != "" || h.Sudo != "" || h.Port != 0 || h.IdentityFile != "" || h.ProxyJump != ""
	}) {
		a.reporter.Warn("--via slurm runs everything as your user, in a job: users, sudo, ports, keys and proxies of the inventory do not count")
	}
	d, err := slurm.New(ctx, slurm.Options{
		Nodes: nodes, Partition: o.partition, Account: o.account, QOS: o.qos, Time: o.time,
		More: o.salloc, Wait: o.wait, Report: a.reporter,
	})
	if err != nil {
		return err
	}
	opt.Dialer, opt.ConnectWait = d, o.wait
	return nil
}
