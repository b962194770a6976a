package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet/envdeploy"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// envVerifyFlags are the flags of dsbuild env verify.
type envVerifyFlags struct {
	nodes nodeFlags
	files filesFlags // without its network: it downloads nothing

	lock   string
	verify string
}

func newEnvVerifyCommand(a *app) *cobra.Command {
	var f envVerifyFlags
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
			f.nodes.command, f.nodes.inventory = cmd.CommandPath(), args[0]
			return runEnvVerify(cmd.Context(), a, f)
		},
	}
	f.nodes.add(cmd)
	cmd.Flags().Lookup("timeout").Usage = verifyTimeoutUsage
	addLockFlag(cmd, &f.lock)
	cmd.Flags().StringVar(&f.files.dir, "files", "", "look for the files of the lock in `DIR` first")
	cmd.Flags().StringVar(&f.verify, "verify", "load",
		"what to check on each node: `load|files` (every op loads, or files alone)")
	return cmd
}

func runEnvVerify(ctx context.Context, a *app, f envVerifyFlags) error {
	opt, err := f.options(ctx, a)
	if err != nil {
		return err
	}
	r, err := envdeploy.Verify(ctx, opt)
	if err != nil {
		return err
	}
	return reportOutcome(ctx, a, f.nodes, r)
}

// options checks the flags, reads the lock and the inventory, and finds the files that are here.
func (f envVerifyFlags) options(ctx context.Context, a *app) (opt envdeploy.Options, err error) {
	opt.Relay.Off = true // it sends nothing
	if opt.Verify, err = verifyLevel(f.verify); err != nil {
		return opt, err
	}
	if opt.Lock, err = environment.ReadLock(f.lock); err != nil {
		return opt, err
	}
	if opt.Options, _, err = f.nodes.options(ctx, a); err != nil {
		return opt, err
	}
	if err := f.files.check(); err != nil {
		return opt, err
	}
	c := &environment.Collector{Folder: f.files.dir, Cache: envCache(), Sums: environment.DefaultSums()}
	paths, err := c.Collect(ctx, opt.Lock, allFiles(opt.Lock))
	if err != nil {
		return opt, err
	}
	missing := map[string]bool{}
	for _, file := range allFiles(opt.Lock) {
		if paths[file.SHA256] == "" && file.Name != "uv" {
			missing[file.File] = true
		}
	}
	if len(missing) > 0 {
		a.reporter.Note("%s of the lock not here: dsbuild compares their packages with RECORD and with the other nodes",
			ui.Count(len(missing), "file"))
	}
	opt.Files, err = envdeploy.OpenFiles(ctx, opt.Lock, paths)
	return opt, err
}
