//go:build full && linux

package main

import "testing"

// The program stays small with two thousand nodes. Half of the memory is garbage, for Go's collector runs when the heap has
// doubled. A limit of the heap by the number of nodes saved a tenth, and was not worth its code.
func TestFullFleetTwoThousandNodes(t *testing.T) {
	staySmall(t, 300, 120e6)
	staySmall(t, 2000, 300e6)
}
