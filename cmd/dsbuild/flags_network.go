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

// networkFlags are the flags of everything that fetches packages. Other settings of the network come from the
// environment (docs/airgap.md).
type networkFlags pipeline.NetworkOptions

// add declares the flags.
func (f *networkFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.IndexURL, "index-url", "",
		"`URL` of the package index to fetch from (default: the variable UV_DEFAULT_INDEX, UV_INDEX_URL or PIP_INDEX_URL)")
	flags.StringArrayVar(&f.ExtraIndexURLs, "extra-index-url", nil,
		"`URL` of an additional package index, repeatable (default: UV_INDEX, UV_EXTRA_INDEX_URL and PIP_EXTRA_INDEX_URL)")
	flags.StringVar(&f.CA, "ca", "", "`FILE` of certificates to trust beside the system's (default: SSL_CERT_FILE)")
}

// addForBuild also declares --nvcc-deb, for builds.
func (f *networkFlags) addForBuild(cmd *cobra.Command) {
	f.add(cmd)
	cmd.Flags().StringVar(&f.NvccDeb, "nvcc-deb", "",
		"`FILE` of Debian's package nvidia-cuda-toolkit 12.4, for device code under CUDA 12 "+
			"(default: from a mirror of Debian)")
}

// site reads the settings of the network, also those of the environment.
func (f networkFlags) read() (pipeline.Network, error) {
	return pipeline.NewNetwork(pipeline.NetworkOptions(f), os.Getenv)
}

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
func (f filesFlags) collector(a *app) (*environment.Collector, pipeline.Network, error) {
	network, err := f.network.read()
	if err != nil {
		return nil, network, err
	}
	return &environment.Collector{
		Folder: f.dir, Cache: envCache(), Indexes: network.FileIndexes(), Torch: network.TorchIndex(),
		Client: network.IndexClient(), Sums: environment.DefaultSums(), Note: a.reporter.Note,
	}, network, f.check()
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
