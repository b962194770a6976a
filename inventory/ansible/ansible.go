// Package ansible reads the output of ansible-inventory --list, and plain Ansible
// inventories in INI. It returns the hosts with their groups and variables;
// package inventory gives the variables a meaning.
//
// Of the variables it keeps those that begin with ansible_ or dsbuild_. Templates
// are not evaluated, and nothing is decrypted.
package ansible

import (
	"strings"

	"github.com/dsbuild/dsbuild/internal/diagnostic"
)

// MaxHosts bounds how many hosts an inventory may have.
const MaxHosts = 100_000

// maxWork bounds the expansion of an inventory: memberships of hosts in groups, and variables of
// groups for their hosts.
const maxWork = 2_000_000

// Inventory holds hosts in the order in which Ansible lists them.
type Inventory struct {
	Hosts []Host
}

// Host is one host with its own variables and those of its groups.
type Host struct {
	Name string
	// Groups are its groups and the groups that contain those, without "all" and
	// "ungrouped".
	Groups []string
	// Vars are its variables. It may share them with other hosts.
	Vars map[string]Var
	// At is the place of its first mention.
	At diagnostic.Position
}

// Var is a variable.
type Var struct {
	// Value is a string, an int64, a float64, a bool, nil, a []any, a
	// map[string]any or Secret.
	Value any
	At    diagnostic.Position
}

// Secret stands for an encrypted value.
type Secret struct{}

// kept reports whether dsbuild needs a variable.
func kept(name string) bool {
	return strings.HasPrefix(name, "ansible_") || strings.HasPrefix(name, "dsbuild_")
}

// IsTemplate reports whether Ansible would evaluate s where it is used.
func IsTemplate(s string) bool { return strings.Contains(s, "{{") || strings.Contains(s, "{%") }
