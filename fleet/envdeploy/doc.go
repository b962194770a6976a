// Package envs puts whole environments on the nodes of an inventory: it makes an environment beside
// the current one, verifies it and switches to it by one rename of a link. docs/commands.md (Files) and
// places.py name the files on a node.
package envdeploy
