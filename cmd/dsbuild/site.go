package main

import (
	"os"

	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/pipeline"
)

// siteFlags are the settings of the site that are worth a flag; the others are
// taken from the environment (docs/airgap.md).
func siteFlags(f *pflag.FlagSet, o *pipeline.SiteOptions) {
	indexFlags(f, o)
	f.StringVar(&o.Toolkit, "toolkit", "", "file of Debian's package nvidia-cuda-toolkit 12.4, for device code under CUDA 12 (default: from a mirror of Debian)")
}

// indexFlags are the flags of a command that fetches packages.
func indexFlags(f *pflag.FlagSet, o *pipeline.SiteOptions) {
	f.StringVar(&o.IndexURL, "index-url", "", "package index to fetch from (default: that of pip or uv in the environment)")
	f.StringArrayVar(&o.ExtraIndexURLs, "extra-index-url", nil, "additional package index, repeatable")
	f.StringVar(&o.CA, "ca", "", "file of certificates to trust beside the system's (default: SSL_CERT_FILE)")
}

func newSite(o pipeline.SiteOptions) (pipeline.Site, error) {
	return pipeline.NewSite(o, os.Getenv)
}
