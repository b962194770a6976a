//go:build linux

package deploy_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/manynodes"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// TestNothingIsLeftOfADeploy finds no goroutine more after a deploy, and none of a
// node's once that is done: what waits for the last of them holds nothing of the first.
func TestNothingIsLeftOfADeploy(t *testing.T) { // not parallel: it counts
	needs.Time(t)
	const nodes = 12
	up, err := manynodes.Up(t.Context(), t.TempDir(), nodes)
	if err != nil {
		t.Fatal(err)
	}
	defer up.Down()
	inv, err := inventory.Open(t.Context(), up.Inventory, inventory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	offered := load(t, wheeltest.Packed(t, t.TempDir(), wheeltest.Options{}))
	before := runtime.NumGoroutine()
	d := deploy.New(deploy.Options{
		Options: fleet.Options{
			Hosts:      inv.Hosts,
			KnownHosts: inv.KnownHosts,
			By:         "tester",
			Dialer:     remote.NewSSH(remote.Options{Config: remote.NoConfig, AgentSocket: "none"}),
			Reporter:   ui.New(testWriter{t}, ui.Options{}),
		},
		Verify: verify.LevelFiles,
		Wheels: offered,
	})
	if _, err := d.Survey(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := d.Apply(t.Context())
	if r.Summary.OK != nodes || !r.Consistent {
		t.Fatalf("%+v", r.Summary)
	}
	settled(t, "after the last node", before)
	d.Close()
	settled(t, "at the end", before)
}

// settled waits until there are no more goroutines than before.
func settled(t *testing.T, when string, before int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			stacks = stacks[:runtime.Stack(stacks, true)]
			t.Fatalf("%s: %d goroutines, %d before\n%s", when, runtime.NumGoroutine(), before, strings.TrimSpace(string(stacks)))
		}
	}
}
