package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/adrg/xdg"
	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/pipeline"
)

// filesFlags are the flags of everything that collects the files of an environment's lock.
type filesFlags struct {
	network networkFlags

	dir string
}

// add declares the flags.
func (f *filesFlags) add(cmd *cobra.Command) {
	f.network.add(cmd)
	cmd.Flags().StringVar(&f.dir, "files", "", "look for the files of the lock in `DIR` before the cache and the index")
}

// collector reads the settings of the network, and returns what finds files for them.
func (f filesFlags) collector(a *app) (*environment.Collector, pipeline.Site, error) {
	site, err := f.network.site()
	if err != nil {
		return nil, site, err
	}
	return &environment.Collector{
		Folder: f.dir, Cache: envCache(), Indexes: site.FileIndexes(), Torch: site.TorchIndex(),
		Client: site.IndexClient(), Sums: environment.DefaultSums(), Note: a.reporter.Note,
	}, site, f.check()
}

// check refuses a folder that is not there.
func (f filesFlags) check() error {
	if info, err := os.Stat(f.dir); f.dir != "" && (err != nil || !info.IsDir()) {
		return usagef("--files %s: it is not a folder", f.dir)
	}
	return nil
}

// addLockFlag declares --lock of a command that reads a lock.
func addLockFlag(cmd *cobra.Command, lock *string) {
	cmd.Flags().StringVar(lock, "lock", "environment.lock", "the lock `FILE` of the environment")
}

// lockName is the lock of an environment file: environment.lock of environment.yaml.
func lockName(file string) string {
	return strings.TrimSuffix(file, filepath.Ext(file)) + ".lock"
}

// envCache is dsbuild's folder for the files of environments.
func envCache() string { return filepath.Join(xdg.CacheHome, "dsbuild", "env") }

// allFiles lists the files of all sets of a lock.
func allFiles(l *environment.Lock) []environment.File {
	var all []environment.File
	for _, s := range l.Sets {
		all = append(all, s.All()...)
	}
	return all
}
