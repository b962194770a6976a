package daggerbuilder

import (
	"dagger.io/dagger"

	"github.com/dsbuild/dsbuild/pipeline"
)

// WithSite is a builder that tells every image and every step that fetches or
// compiles the settings of the site.
func (b *Builder) WithSite(site pipeline.Site) *Builder {
	with := *b
	with.site = site
	return &with
}

// siteSecret is the name of the secret with the settings: the id by which the
// Dockerfiles mount it.
const siteSecret = "site"

// siteMount is where the scripts look for it.
const siteMount = "/run/secrets/" + siteSecret

// siteSecret hands the settings to the engine. It knows a secret that was set by
// its name: neither the text nor whether there is any decides what is cached, so
// one is always given.
func (b *Builder) siteSecret() *dagger.Secret {
	return b.client.SetSecret(siteSecret, b.site.Script())
}
