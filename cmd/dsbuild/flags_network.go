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
// environment (docs/build.md).
type networkFlags pipeline.NetworkOptions

// add declares the flags.
func (f *networkFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.IndexURL, "index-url", "",
		"`URL` Package index (default: UV_DEFAULT_INDEX, UV_INDEX_URL or PIP_INDEX_URL)")
	flags.StringArrayVar(&f.ExtraIndexURLs, "extra-index-url", nil,
		"`URL` Additional package index; repeatable (default: UV_INDEX, UV_EXTRA_INDEX_URL or PIP_EXTRA_INDEX_URL)")
	flags.StringVar(&f.CA, "ca", "", "`FILE` Additional CA certificates (default: SSL_CERT_FILE)")
	inGroup(cmd, groupIndex, "index-url", "extra-index-url", "ca")
}

// addForBuild also declares --nvcc-deb, for builds.
func (f *networkFlags) addForBuild(cmd *cobra.Command) {
	f.add(cmd)
	cmd.Flags().StringVar(&f.NvccDeb, "nvcc-deb", "",
		"`FILE` Debian's nvidia-cuda-toolkit 12.4 package, for device code with CUDA 12 "+
			"(default: from a Debian mirror)")
	inGroup(cmd, groupBuild, "nvcc-deb")
	siteFlags(cmd, "nvcc-deb")
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
	cmd.Flags().StringVar(&f.dir, "files", "", "`DIR` Directory to search for locked files before the cache and the index")
	inGroup(cmd, groupIndex, "files")
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

// check rejects a directory that does not exist.
func (f filesFlags) check() error {
	if info, err := os.Stat(f.dir); f.dir != "" && (err != nil || !info.IsDir()) {
		return usagef("--files: %s is not a directory", f.dir)
	}
	return nil
}

// addLockFlag declares --lock of a command that reads a lock.
func addLockFlag(cmd *cobra.Command, lock *string) {
	cmd.Flags().StringVar(lock, "lock", "environment.lock", "`FILE` Lockfile of the environment")
	inGroup(cmd, groupEnv, "lock")
}

// lockName is the lock of an environment file: environment.lock of environment.yaml.
func lockName(file string) string {
	return strings.TrimSuffix(file, filepath.Ext(file)) + ".lock"
}

// envCache is dsbuild's directory for the files of environments.
func envCache() string { return filepath.Join(xdg.CacheHome, "dsbuild", "env") }

// allFiles lists the files of all sets of a lock.
func allFiles(l *environment.Lock) []environment.File {
	var all []environment.File
	for _, s := range l.Sets {
		all = append(all, s.All()...)
	}
	return all
}
