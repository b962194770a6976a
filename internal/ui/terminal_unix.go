//go:build unix

package ui

// understandsEscapes reports whether a terminal knows control sequences: any
// but one that calls itself dumb.
func understandsEscapes(int) bool { return true }
