//go:build full && linux

package docker

import "testing"

// An engine that does not come up in podman is told with its own words.
func TestFullDockerPodmanNoEngine(t *testing.T) {
	noEngines(t, Podman(t, Options{}))
}
