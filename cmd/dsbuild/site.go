package main

import (
	"os"

	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/pipeline"
)

// indexFlags are the flags of a command that fetches packages; the other settings of the site
// come from the environment (docs/airgap.md).
func indexFlags(f *pflag.FlagSet, o *pipeline.SiteOptions) {
	f.StringVar(&o.IndexURL, "index-url", "",
		"`URL` of the package index to fetch from (default: the variable UV_DEFAULT_INDEX, UV_INDEX_URL or PIP_INDEX_URL)")
	f.StringArrayVar(&o.ExtraIndexURLs, "extra-index-url", nil,
		"`URL` of an additional package index, repeatable (default: UV_INDEX, UV_EXTRA_INDEX_URL and PIP_EXTRA_INDEX_URL)")
	caFlag(f, &o.CA)
}

func caFlag(f *pflag.FlagSet, ca *string) {
	f.StringVar(ca, "ca", "", "`FILE` of certificates to trust beside the system's (default: SSL_CERT_FILE)")
}

func newSite(o pipeline.SiteOptions) (pipeline.Site, error) {
	return pipeline.NewSite(o, os.Getenv)
}
