//go:build full && linux

package docker

import "testing"

// If an engine does not start in podman, the error has its last lines.
func TestFullDockerPodmanNoEngine(t *testing.T) {
	noEngines(t, Podman(t, Options{}))
}
