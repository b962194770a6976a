package daggerbuilder

import (
	"testing"

	"dagger.io/dagger/engineconn"

	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// The engine that is run is of the client library's release.
func TestEngineVersion(t *testing.T) {
	if engine.Version != "v"+engineconn.CLIVersion {
		t.Errorf("engine %s, client library %s", engine.Version, engineconn.CLIVersion)
	}
}
