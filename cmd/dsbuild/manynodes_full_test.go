//go:build full && linux

package main

import "testing"

// The program stays small with a thousand nodes.
func TestFullFleetThousandNodes(t *testing.T) { staySmall(t, 1000, 150e6) }
