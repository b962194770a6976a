package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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

// connectFlags are the flags that say how to reach nodes.
type connectFlags struct {
	via       string
	ssh       string
	partition string
	account   string
	qos       string
	time      string
	wait      time.Duration
	salloc    []string
	unset     nodeDefaults
	flags     *pflag.FlagSet
}

// slurmFlags are the flags that require --via slurm.
func slurmFlags() []string {
	return []string{"partition", "account", "qos", "time", "slurm-wait", "salloc"}
}

// add declares the flags.
func (f *connectFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.flags = flags
	choiceVar(flags, &f.via, "via", viaSSH, []string{viaSSH, viaSlurm}, "Reach nodes over SSH, or in a Slurm allocation")
	choiceVar(flags, &f.ssh, "ssh", sshAuto, []string{sshAuto, string(remote.Native), string(remote.OpenSSH)},
		"SSH client; auto: openssh where a node's SSH configuration requires it, else native")
	flags.StringVar(&f.partition, "partition", "",
		"`PARTITION` Partition, or several separated by commas in order of preference (default: one of each node's partitions)")
	flags.StringVar(&f.account, "account", "", "`ACCOUNT` Account to charge")
	flags.StringVar(&f.qos, "qos", "", "`QOS` Quality of service")
	flags.StringVar(&f.time, "time", "", "`TIME` Time limit: 30, 2:00:00")
	parsedVar(flags, &f.wait, "slurm-wait", "1m", "duration", atLeastSecond, "`DURATION` Maximum wait for busy nodes")
	flags.StringArrayVar(&f.salloc, "salloc", nil,
		"`OPTION` Additional salloc option, such as --salloc=--reservation=maint; repeatable")
	inGroup(cmd, groupConnection, "via", "ssh")
	f.unset.addUserFlag(cmd)
	f.unset.addPythonFlag(cmd)
	inGroup(cmd, groupSlurm, slurmFlags()...)
	siteFlags(cmd, "via", "ssh")
	siteFlags(cmd, slurmFlags()...)
}

// check checks the values beyond their types. Only the command line can contradict itself: a value from a variable
// that has no effect is ignored.
func (f connectFlags) check() error {
	if f.via == viaSlurm {
		for _, flag := range []string{"ssh", "user"} {
			if f.flags.Changed(flag) {
				return usagef("--%s has no effect with --via slurm", flag)
			}
		}
		for _, option := range f.salloc {
			if why := sallocRefusal(option); why != "" {
				return usagef("%s: %s", f.sallocName(option), why)
			}
		}
		return nil
	}
	if f.ssh == string(remote.OpenSSH) {
		if _, err := remote.FindOpenSSH(context.Background()); err != nil {
			return &usageError{err: fmt.Errorf("--ssh openssh: %w", err), hint: fault.Hint(err)}
		}
	}
	for _, flag := range slurmFlags() {
		if f.flags.Changed(flag) {
			return usagef("--%s requires --via slurm", flag)
		}
	}
	return nil
}

// defaults are the settings of nodes without one in the inventory. Slurm's jobs run as the user.
func (f connectFlags) defaults() nodeDefaults {
	if f.via == viaSlurm {
		f.unset.user = ""
	}
	return f.unset
}

// sallocName names an option by its source.
func (f connectFlags) sallocName(option string) string {
	if f.flags.Changed("salloc") {
		return fmt.Sprintf("invalid value %q for --salloc", option)
	}
	return fmt.Sprintf("%s: invalid value %q", variableOf("salloc"), option)
}

// sallocRefusal returns why an option cannot be passed to salloc. It returns "" if it can.
func sallocRefusal(option string) string {
	name, _, hasValue := strings.Cut(option, "=")
	switch {
	case !strings.HasPrefix(option, "--") || strings.ContainsAny(name, " \t"):
		return "want --NAME=VALUE, such as --salloc=--gres=gpu:1"
	case slices.Contains([]string{"--partition", "--account", "--qos", "--time"}, name) && hasValue:
		return "use dsbuild's own flag: " + option
	case slices.Contains([]string{
		"--nodes", "--nodelist", "--exclude", "--nodefile", "--jobid", "--no-shell", "--immediate", "--kill-command",
		"--ntasks", "--ntasks-per-node", "--cpus-per-task",
	}, name):
		return "set by dsbuild itself"
	}
	return ""
}

// addDialer sets the fleet's dialer.
func (f connectFlags) addDialer(ctx context.Context, a *app, inv *inventory.Inventory, opt *fleet.Options) error {
	if f.via != viaSlurm {
		// As in ssh, transient errors are retried.
		opt.Asks = a.prompt != nil
		answers := remote.NewAnswers(a.prompt)
		askpass, err := os.Executable()
		if err != nil {
			return err
		}
		ssh := remote.NewSSH(remote.Options{
			Client: remote.Client(f.ssh), Answers: answers, Askpass: askpass, MaxAttempts: 3,
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
		a.reporter.Warn("--via slurm ignores user, sudo, port, key and proxy settings")
	}
	d, err := slurm.New(ctx, slurm.Options{
		Nodes: nodes, Partition: f.partition, Account: f.account, QOS: f.qos, Time: f.time,
		More: f.salloc, Wait: f.wait, Report: a.reporter,
	})
	if err != nil {
		return err
	}
	opt.Dialer, opt.ConnectWait = d, f.wait
	return nil
}

// forFlags are --for and its flags, of commands that ask nodes and change none.
type forFlags struct {
	connect connectFlags

	inventory string
	limit     string
}

// add declares the flags; usage is the usage of --for.
func (f *forFlags) add(cmd *cobra.Command, usage string) {
	var others cobra.Command
	others.Flags().SortFlags = false
	addLimitFlag(&others, &f.limit)
	f.connect.add(&others)
	cmd.Flags().StringVar(&f.inventory, "for", "", usage)
	others.Flags().VisitAll(func(flag *pflag.Flag) {
		if cmd.Flags().Lookup(flag.Name) == nil { // dsbuild wheel --python is a version
			cmd.Flags().AddFlag(flag)
			flagsNeed(cmd, "for", flag.Name)
		}
	})
	inGroup(cmd, groupConnection, "for", "limit")
}

// options checks the flags and reads the inventory.
func (f forFlags) options(ctx context.Context, a *app) (fleet.Options, error) {
	if err := setFromEnvironment(f.connect.flags); err != nil { // also a flag that the command has with another meaning
		return fleet.Options{}, err
	}
	if err := f.connect.check(); err != nil {
		return fleet.Options{}, err
	}
	inv, err := a.loadInventory(ctx, f.inventory, f.limit, f.connect.defaults())
	if err != nil {
		return fleet.Options{}, err
	}
	opt := fleet.Options{Hosts: inv.Hosts, KnownHosts: inv.KnownHosts, Reporter: a.reporter}
	err = f.connect.addDialer(ctx, a, inv, &opt)
	return opt, err
}
