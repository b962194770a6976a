//go:build full && linux

package main

import (
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
)

// TestFullFleetGate: after the first batch its nodes sum numbers, and take a step of ZeRO with the new DeepSpeed.
func TestFullFleetGate(t *testing.T) {
	_, dist := realWheel(t)
	fleet := nodestest.Up(t, nodes.Options{Count: 3, Env: nodes.WithTorch})
	out, said := program(t, t.TempDir(), 0, "deploy", fleet.Inventory, "--wheel", dist, "--serial", "2,100%", "--gate", "check")
	if !strings.Contains(said, "all-reduce and ZeRO step with gloo, 2 processes on 2 nodes") || !strings.Contains(out, "3 nodes ok") {
		t.Errorf("%s\n%s", out, said)
	}
}
