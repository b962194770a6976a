// Package ansible reads Ansible inventories as Ansible does: files in INI and in
// a subset of YAML, and what ansible-inventory --list prints. It tells which
// hosts there are, in which groups, and with which variables; what the variables
// mean is told elsewhere.
//
// Of the variables it keeps those that begin with ansible_ or dsbuild_. Templates
// are not evaluated, and nothing is decrypted.
package ansible

import (
	"strings"

	"github.com/dsbuild/dsbuild/internal/mistake"
)

// MaxHosts bounds how many hosts an inventory may have.
const MaxHosts = 100_000

// maxWork bounds what an inventory may unfold to: memberships of hosts in
// groups, and variables of groups for their hosts.
const maxWork = 2_000_000

// Inventory is what an inventory says, in the order in which Ansible lists it.
type Inventory struct {
	Hosts []Host
}

// Host is one host with all it inherits from its groups.
type Host struct {
	Name string
	// Groups are all it belongs to, by way of their children as well, but for
	// "all" and "ungrouped".
	Groups []string
	// Vars are its variables. It may share them with other hosts.
	Vars map[string]Var
	// At is where it is given first.
	At mistake.Position
}

// Var is a variable.
type Var struct {
	// Value is a string, an int64, a float64, a bool, nil, a []any, a
	// map[string]any or Secret.
	Value any
	At    mistake.Position
}

// Secret is a value that is encrypted.
type Secret struct{}

// kept reports whether a variable is of interest.
func kept(name string) bool {
	return strings.HasPrefix(name, "ansible_") || strings.HasPrefix(name, "dsbuild_")
}

// IsTemplate reports whether Ansible would evaluate s where it is used.
func IsTemplate(s string) bool { return strings.Contains(s, "{{") || strings.Contains(s, "{%") }
