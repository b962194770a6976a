// Package envs puts whole environments on the nodes of an inventory: it makes an environment beside
// the one that is there, verifies it and switches to it by one rename of a link. What is on a node
// is described in docs/design.md.
package envs
