package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet/envdeploy"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// envVerifyFlags are the flags of dsbuild env verify.
type envVerifyFlags struct {
	nodes nodeFlags
	files filesFlags // without its network: nothing is downloaded

	lock   string
	verify verify.Level
}

func newEnvVerifyCommand(a *app) *cobra.Command {
	var f envVerifyFlags
	cmd := &cobra.Command{
		Use:   "verify INVENTORY",
		Short: "Report environments that differ from the lockfile, file by file",
		Long: `Report environments that differ from the lockfile or from each other.

Every file is compared with its package's RECORD, and code that belongs to no
package is reported. Packages are also compared with their wheels if these are
in the cache or in --files. Nothing is downloaded, and nothing is changed on the
nodes.`,
		Example: `  # Verify all nodes, or only compare files without loading ops
  $ dsbuild env verify inventory.yaml
  $ dsbuild env verify inventory.yaml --verify files`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.nodes.command, f.nodes.inventory = cmd.CommandPath(), args[0]
			return runEnvVerify(cmd.Context(), a, f)
		},
	}
	f.nodes.add(cmd)
	cmd.Flags().Lookup("timeout").Usage = verifyTimeoutUsage
	addLockFlag(cmd, &f.lock)
	cmd.Flags().StringVar(&f.files.dir, "files", "", "`DIR` Directory to search for locked files before the cache")
	inGroup(cmd, groupIndex, "files")
	addVerifyFlag(cmd, &f.verify, "Load every op, or only compare files")
	inGroup(cmd, groupEnv, "verify")
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

// options checks the flags, reads the lockfile and the inventory, and finds the locked files in --files and the cache.
func (f envVerifyFlags) options(ctx context.Context, a *app) (opt envdeploy.Options, err error) {
	opt.Relay.Off = true // nothing is sent
	opt.Verify = f.verify
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
		a.reporter.Note("%s not in --files or the cache: these packages are compared only with RECORD and other nodes",
			ui.Count(len(missing), "locked file"))
	}
	opt.Files, err = envdeploy.OpenFiles(ctx, opt.Lock, paths)
	return opt, err
}
