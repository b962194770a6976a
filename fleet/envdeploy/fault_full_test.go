//go:build full

package envdeploy_test

import "testing"

// Every point of a deploy, one after the other.
func TestFullEnvKilledAgent(t *testing.T) {
	var points []int
	for at := range 30 {
		points = append(points, at+1)
	}
	died := killAgent(t, points)
	if died < 24 {
		t.Errorf("only %d agents died", died)
	}
	t.Logf("result: agent of an environment killed before each of %d things that it does to the file system: always the old or the new environment, and the next run brought the new one", died)
}
