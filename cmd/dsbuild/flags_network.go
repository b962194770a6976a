package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/pipeline"
)

// networkFlags are the flags of everything that fetches packages. Other settings of the network come from the
// environment (docs/airgap.md).
type networkFlags pipeline.SiteOptions

// add declares the flags.
func (f *networkFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.IndexURL, "index-url", "",
		"`URL` of the package index to fetch from (default: the variable UV_DEFAULT_INDEX, UV_INDEX_URL or PIP_INDEX_URL)")
	flags.StringArrayVar(&f.ExtraIndexURLs, "extra-index-url", nil,
		"`URL` of an additional package index, repeatable (default: UV_INDEX, UV_EXTRA_INDEX_URL and PIP_EXTRA_INDEX_URL)")
	flags.StringVar(&f.CA, "ca", "", "`FILE` of certificates to trust beside the system's (default: SSL_CERT_FILE)")
}

// addForBuild also declares --toolkit, for builds.
func (f *networkFlags) addForBuild(cmd *cobra.Command) {
	f.add(cmd)
	cmd.Flags().StringVar(&f.Toolkit, "toolkit", "",
		"`FILE` of Debian's package nvidia-cuda-toolkit 12.4, for device code under CUDA 12 "+
			"(default: from a mirror of Debian)")
}

// site reads the settings of the network, also those of the environment.
func (f networkFlags) site() (pipeline.Site, error) {
	return pipeline.NewSite(pipeline.SiteOptions(f), os.Getenv)
}
