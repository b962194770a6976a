package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/adrg/xdg"
	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/envdeploy"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/relay"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
)

// envOptions are the flags of the commands of dsbuild env.
type envOptions struct {
	changeFlags

	lock   string
	files  string
	site   pipeline.SiteOptions
	verify string
	force  bool
}

func newEnvCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Take nodes from a bare Python to one whole environment",
		Long: `Take nodes from a bare Python to one whole environment: torch, DeepSpeed,
companions and requirements.

environment.yaml says what is wanted, dsbuild env lock writes down every file of
it, and dsbuild env deploy gives each node the very same environment in a folder
of its own, without a package index on the nodes. A node switches to the new
environment by one rename of a link. The previous environment stays, for dsbuild
env rollback.` + whichDeploy,
	}
	cmd.AddCommand(newEnvLockCommand(a), newEnvDeployCommand(a), newEnvVerifyCommand(a), newEnvRollbackCommand(a))
	return cmd
}

func newEnvDeployCommand(a *app) *cobra.Command {
	var opts envOptions
	cmd := &cobra.Command{
		Use:   "deploy INVENTORY",
		Short: "Give every node the environment of a lock",
		Long: `Give every node the environment of a lock, and prove that all have the same.

dsbuild first collects the files of the lock on this machine, then probes every
node, and refuses a node that the lock has no files for before it sends
anything. Each node gets the wheels that it lacks, and uv makes the environment
there from these files alone, beside the current one. dsbuild compares every
file with its wheel and loads every op of DeepSpeed. Then it switches by one
rename of the link current. If anything fails or is interrupted, the old
environment stays. A second run changes nothing.

It refuses a node whose current environment is used by running processes, and
names them; --in-use changes that.`,
		Example: `  dsbuild env deploy inventory.yaml
  dsbuild env deploy inventory.yaml --lock train.lock --limit 'gpu[01-04]' --dry-run`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.command, opts.inventory = cmd.CommandPath(), args[0]
			return runEnvDeploy(cmd.Context(), a, opts)
		},
	}
	addChangeFlags(cmd, &opts.changeFlags)
	addBandwidthFlag(cmd, &opts.changeFlags)
	addLockFlags(cmd, &opts)
	addFilesFlags(cmd, &opts)
	flags := cmd.Flags()
	flags.StringVar(&opts.verify, "verify", "load", "what to check on each node: `load|files` (every op loads, or files alone)")
	flags.BoolVar(&opts.force, "force", false, "make the environment anew also where a node has it already")
	return cmd
}

func newEnvVerifyCommand(a *app) *cobra.Command {
	var opts envOptions
	cmd := &cobra.Command{
		Use:   "verify INVENTORY",
		Short: "Compare the environments of nodes with the lock, to the last file",
		Long: `Compare the whole environments of nodes with the lock and with each other, to
the last file. dsbuild changes and writes nothing on the nodes.

Each node compares every file with its RECORD, and names code that belongs to no
package. dsbuild compares the files of each package with those of its wheel, if
it has the wheel here, in the cache or in --files; it downloads nothing.`,
		Example: `  dsbuild env verify inventory.yaml`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.command, opts.inventory = cmd.CommandPath(), args[0]
			ctx := cmd.Context()
			level, err := verifyLevel(opts.verify)
			if err != nil {
				return err
			}
			lock, err := environment.ReadLock(opts.lock)
			if err != nil {
				return err
			}
			common, _, err := opts.fleetOptions(ctx, a)
			if err != nil {
				return err
			}
			if err := opts.checkFiles(); err != nil {
				return err
			}
			opt := envdeploy.Options{Options: common, Rules: change.Rules{Relay: relay.Options{Off: true}}, Verify: level, Lock: lock} // it sends nothing
			c := &environment.Collector{Folder: opts.files, Cache: envCache(), Sums: environment.DefaultSums()}
			paths, err := c.Collect(ctx, opt.Lock, allFiles(opt.Lock))
			if err != nil {
				return err
			}
			missing := map[string]bool{}
			for _, f := range allFiles(opt.Lock) {
				if paths[f.SHA256] == "" && f.Name != "uv" {
					missing[f.File] = true
				}
			}
			if len(missing) > 0 {
				a.reporter.Note("%s of the lock not here: dsbuild compares their packages with RECORD and with the other nodes", ui.Count(len(missing), "file"))
			}
			if opt.Files, err = envdeploy.OpenFiles(ctx, opt.Lock, paths); err != nil {
				return err
			}
			r, err := envdeploy.Verify(ctx, opt)
			if err != nil {
				return err
			}
			return reportOutcome(ctx, a, opts.fleetFlags, r)
		},
	}
	addFleetFlags(cmd, &opts.fleetFlags)
	cmd.Flags().Lookup("timeout").Usage = verifyTimeoutUsage
	addLockFlags(cmd, &opts)
	cmd.Flags().StringVar(&opts.files, "files", "", "look for the files of the lock in `DIR` first")
	cmd.Flags().StringVar(&opts.verify, "verify", "load", "what to check on each node: `load|files` (every op loads, or files alone)")
	return cmd
}

func newEnvRollbackCommand(a *app) *cobra.Command {
	var opts envOptions
	cmd := &cobra.Command{
		Use:   "rollback INVENTORY",
		Short: "Switch back to the environment that each node had before",
		Long: `Switch back to the environment that each node had before the last switch, after
a look at every file of it. dsbuild sends no files, because the node kept that
environment. A node keeps only one previous environment. dsbuild reads only the
environment's name from the lock.`,
		Example: `  dsbuild env rollback inventory.yaml --limit 'gpu[03-04]'`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.command, opts.inventory = cmd.CommandPath(), args[0]
			opt, err := opts.options(cmd.Context(), a)
			if err != nil {
				return err
			}
			opt.Verify = verify.LevelFiles
			d := envdeploy.New(opt)
			defer d.Close()
			plan, err := d.SurveyRollback(cmd.Context())
			return opts.finish(cmd.Context(), a, d, survey{plan, newEnvPlan(plan), err})
		},
	}
	addChangeFlags(cmd, &opts.changeFlags)
	addLockFlags(cmd, &opts)
	return cmd
}

func addLockFlags(cmd *cobra.Command, opts *envOptions) {
	cmd.Flags().StringVar(&opts.lock, "lock", "environment.lock", "the lock `FILE` of the environment")
}

// addFilesFlags gives a command the flags of everything that collects files.
func addFilesFlags(cmd *cobra.Command, opts *envOptions) {
	flags := cmd.Flags()
	flags.StringVar(&opts.files, "files", "", "look for the files of the lock in `DIR` before the cache and the index")
	indexFlags(flags, &opts.site)
}

// envCache is dsbuild's folder for the files of environments.
func envCache() string { return filepath.Join(xdg.CacheHome, "dsbuild", "env") }

// checkFiles refuses a folder of --files that is not there.
func (o envOptions) checkFiles() error {
	if info, err := os.Stat(o.files); o.files != "" && (err != nil || !info.IsDir()) {
		return usagef("--files %s: it is not a folder", o.files)
	}
	return nil
}

// collector finds files of locks for the settings of a site.
func (o envOptions) collector(a *app, site pipeline.Site) (*environment.Collector, error) {
	if err := o.checkFiles(); err != nil {
		return nil, err
	}
	return &environment.Collector{
		Folder: o.files, Cache: envCache(), Indexes: site.FileIndexes(), Torch: site.TorchIndex(),
		Client: site.IndexClient(), Sums: environment.DefaultSums(), Note: a.reporter.Note,
	}, nil
}

// options checks the flags and reads the lock and the inventory.
func (o envOptions) options(ctx context.Context, a *app) (envdeploy.Options, error) {
	lock, err := environment.ReadLock(o.lock)
	if err != nil {
		return envdeploy.Options{}, err
	}
	opt, rules, err := o.changeOptions(ctx, a)
	rules.Force = o.force
	return envdeploy.Options{Options: opt, Rules: rules, Lock: lock}, err
}

// allFiles lists the files of all sets of a lock.
func allFiles(l *environment.Lock) []environment.File {
	var all []environment.File
	for _, s := range l.Sets {
		all = append(all, s.All()...)
	}
	return all
}

// runEnvDeploy deploys an environment as opts say.
func runEnvDeploy(ctx context.Context, a *app, opts envOptions) error {
	opt, err := opts.withFiles(ctx, a)
	if err != nil {
		return err
	}
	d := envdeploy.New(opt)
	defer d.Close()
	plan, err := d.Survey(ctx)
	return opts.finish(ctx, a, d, survey{plan, newEnvPlan(plan), err})
}

// withFiles is options with the files of the lock, which it collects.
func (o envOptions) withFiles(ctx context.Context, a *app) (envdeploy.Options, error) {
	level, err := verifyLevel(o.verify)
	if err != nil {
		return envdeploy.Options{}, err
	}
	opt, err := o.options(ctx, a)
	if err != nil {
		return opt, err
	}
	opt.Verify = level
	file := strings.TrimSuffix(o.lock, filepath.Ext(o.lock)) + ".yaml"
	if spec, err := environment.Read(file, nil); err == nil && !opt.Lock.Answers(spec) {
		a.reporter.Warn("%s has changed since %s was made, and dsbuild deploys what the lock says: dsbuild env lock makes a new one", ui.Clean(file), ui.Clean(o.lock))
	}
	site, err := pipeline.NewSite(o.site, os.Getenv)
	if err != nil {
		return opt, err
	}
	c, err := o.collector(a, site)
	if err != nil {
		return opt, err
	}
	paths, err := c.Collect(ctx, opt.Lock, allFiles(opt.Lock))
	if err == nil {
		opt.Files, err = envdeploy.OpenFiles(ctx, opt.Lock, paths)
	}
	return opt, err
}

// lockName is the lock of an environment file: environment.lock of environment.yaml.
func lockName(file string) string {
	return strings.TrimSuffix(file, filepath.Ext(file)) + ".lock"
}
