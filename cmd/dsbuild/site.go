package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/internal/scratch"
	"github.com/dsbuild/dsbuild/pipeline"
)

// siteFlags are the settings of the site that are worth a flag; the others are
// taken from the environment (docs/airgap.md).
func siteFlags(f *pflag.FlagSet, o *pipeline.SiteOptions) {
	f.StringVar(&o.IndexURL, "index-url", "", "package index to fetch from (default: as pip or uv is told by the environment)")
	f.StringArrayVar(&o.ExtraIndexURLs, "extra-index-url", nil, "another index beside it, repeatable")
	f.StringVar(&o.CA, "ca", "", "file of certificates to trust beside the system's (default: SSL_CERT_FILE)")
	f.StringVar(&o.Toolkit, "toolkit", "", "file of Debian's package nvidia-cuda-toolkit 12.4, for device code under CUDA 12 (default: from a mirror of Debian)")
}

func newSite(o pipeline.SiteOptions) (pipeline.Site, error) {
	return pipeline.NewSite(o, os.Getenv)
}

// siteVariable names the file with the settings where there is no container.
const siteVariable = "DSBUILD_SITE"

// hostEnviron is this process's environment with the settings of the site, in a
// file that close removes.
func (p *place) hostEnviron() ([]string, error) {
	if p.siteDir == nil {
		dir, err := scratch.New("")
		if err != nil {
			return nil, err
		}
		p.siteDir = dir
	}
	file := filepath.Join(p.siteDir.Path, "site")
	if err := os.WriteFile(file, []byte(p.site.Script()), 0o600); err != nil {
		return nil, err
	}
	return append(os.Environ(), siteVariable+"="+file), nil
}
