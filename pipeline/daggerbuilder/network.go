package daggerbuilder

import (
	"dagger.io/dagger"

	"github.com/dsbuild/dsbuild/pipeline"
)

// WithNetwork returns a builder that passes the settings of the site to every image and to every
// step that fetches or compiles.
func (b *Builder) WithNetwork(network pipeline.Network) *Builder {
	with := *b
	with.network = network
	return &with
}

// siteSecret is the name of the secret with the settings: the id by which the
// Dockerfiles mount it.
const siteSecret = "site"

// siteMount is the path where the scripts look for the settings.
const siteMount = "/run/secrets/" + siteSecret

// siteSecret passes the settings to the engine as a secret. The engine identifies a secret by its
// name. Its text and its presence do not change the cache key, so siteSecret always passes one.
func (b *Builder) siteSecret() *dagger.Secret {
	return b.client.SetSecret(siteSecret, b.network.Script())
}
