package inventory

import (
	"maps"
	"slices"
)

// optional is a value that a file may omit.
type optional[T any] struct {
	value T
	set   bool
}

func some[T any](value T) optional[T] { return optional[T]{value, true} }

// or returns o, or the fallback if the file omits o.
func (o optional[T]) or(fallback optional[T]) optional[T] {
	if o.set {
		return o
	}
	return fallback
}

// settings are the keys that defaults, nodes and envs may hold.
type settings struct {
	address, user, identityFile, proxyJump, python, setup optional[string]
	sudo                                                  optional[string] // "": no sudo
	port, slots                                           optional[int]
	execPrefix                                            optional[[]string]
	sshArgs, groups                                       []string
	env                                                   map[string]string
	envs                                                  optional[[]environment]
}

// environment is one of a node's several Python environments.
type environment struct {
	name string
	settings
}

// over merges s with the more general base. s takes precedence, variables are merged by name, and
// groups are added.
func (s settings) over(base settings) settings {
	merged := settings{
		address:      s.address.or(base.address),
		user:         s.user.or(base.user),
		sudo:         s.sudo.or(base.sudo),
		identityFile: s.identityFile.or(base.identityFile),
		proxyJump:    s.proxyJump.or(base.proxyJump),
		python:       s.python.or(base.python),
		setup:        s.setup.or(base.setup),
		port:         s.port.or(base.port),
		slots:        s.slots.or(base.slots),
		execPrefix:   s.execPrefix.or(base.execPrefix),
		envs:         s.envs.or(base.envs),
		sshArgs:      base.sshArgs,
		groups:       slices.Clone(base.groups),
	}
	have := make(map[string]bool, len(base.groups)+len(s.groups))
	for _, g := range base.groups {
		have[g] = true
	}
	for _, g := range s.groups {
		if !have[g] {
			have[g] = true
			merged.groups = append(merged.groups, g)
		}
	}
	if len(base.env)+len(s.env) > 0 {
		merged.env = make(map[string]string, len(base.env)+len(s.env))
		maps.Copy(merged.env, base.env)
		maps.Copy(merged.env, s.env)
	}
	return merged
}

// maxHeld bounds the variables, groups and words of all Hosts together.
const maxHeld = 5_000_000

// size returns how much of maxHeld the Hosts of one node use.
func (s settings) size() int {
	one := 1 + len(s.sshArgs) + len(s.env) + len(s.groups) + len(s.execPrefix.value)
	if len(s.envs.value) == 0 {
		return one
	}
	all := 0
	for _, env := range s.envs.value {
		all += one + len(env.env) + len(env.groups) + len(env.execPrefix.value)
	}
	return all
}

// host returns the Host of a node called name with these settings.
func (s settings) host(name string, at Position) Host {
	return Host{
		Name:         name,
		Node:         name,
		Address:      s.address.or(some(name)).value,
		Port:         s.port.value,
		User:         s.user.value,
		Sudo:         s.sudo.value,
		IdentityFile: s.identityFile.value,
		ProxyJump:    s.proxyJump.value,
		SSHArgs:      s.sshArgs,
		Groups:       slices.Clone(s.groups),
		Python:       s.python.value,
		Env:          maps.Clone(s.env),
		Setup:        s.setup.value,
		ExecPrefix:   slices.Clone(s.execPrefix.value),
		Slots:        s.slots.value,
		Position:     at.String(),
	}
}

// defaultPython is the interpreter of a node if neither the inventory nor Options set one.
const defaultPython = "python3"

// hosts returns the Hosts of a node called name: one, or one for each of its envs.
func (s settings) hosts(name string, at Position) []Host {
	if len(s.envs.value) == 0 {
		return []Host{s.host(name, at)}
	}
	var all []Host
	for _, env := range s.envs.value {
		h := env.over(s).host(name, at)
		h.Name = name + "/" + env.name
		all = append(all, h)
	}
	return all
}
