// Package envs puts whole environments on the nodes of an inventory: it makes an environment beside
// the current one, verifies it and switches to it by one rename of a link. docs/design.md describes
// the files on a node.
package envs
