//go:build full

package deploy_test

import "testing"

// Every point and, for some thousands of them, every point of the repair after it.
func TestFullFaultsKilledAgent(t *testing.T) {
	t.Parallel()
	t.Logf("result: agent killed, or its node without power, before each thing it does to the file system, then once more while the next run repairs: %d times, then always the old or the new version", crashes(t, 1, 200))
}
