package deploy_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dsbuild/dsbuild/internal/remote/sshtest"
)

// An environment may lie below a folder with a space in its name, or a sign that means
// something to a shell.
func TestEnvironmentWithASpaceInItsPath(t *testing.T) {
	t.Parallel()
	parent := filepath.Join(t.TempDir(), "my $HOME's (envs)")
	if err := os.Mkdir(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	e := newEnvironmentIn(t, parent, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{s}, h)
	if r := run(t, t.Context(), opt); r.Err() != nil || !r.Nodes[0].Changed {
		t.Fatalf("%v: %+v", r.Err(), r.Nodes[0])
	}
	if r := back(t, opt); r.Err() != nil {
		t.Errorf("%v: %+v", r.Err(), r.Nodes[0])
	}
}
