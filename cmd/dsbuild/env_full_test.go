//go:build full && linux

package main

import "testing"

// kill -9 of dsbuild at 30 moments.
func TestFullEnvKilledDriver(t *testing.T) { killDriver(t, 30) }
