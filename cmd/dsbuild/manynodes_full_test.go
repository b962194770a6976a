//go:build full && linux

package main

import "testing"

// The program stays small with a thousand nodes: 161 to 163 MB on 2026-11-26. Half of it is garbage, for Go's collector
// runs when the heap has doubled. A limit of the heap by the number of nodes brought it to 140 MB, and was not worth its code.
func TestFullFleetThousandNodes(t *testing.T) { staySmall(t, 1000, 180e6) }
