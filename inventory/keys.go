package inventory

import (
	"slices"

	"github.com/dsbuild/dsbuild/internal/yamldoc"
)

// place is where in the file a key is allowed.
type place int

const (
	inDefaults place = 1 << iota
	inNode
	inEnv
)

// key is a key of defaults, a node or an env, and how its value is read.
type key struct {
	name   string
	places place
	read   func(*reader, *settings, yamldoc.Node)
}

// The largest port, and the largest number of GPUs of a node.
const (
	maxPort  = 65535
	maxSlots = 4096
)

// keys is the table of all keys that become settings. It excludes "hosts" of a node and "name" of an
// env, which identify the node or the env. inventory/schema.json has the same keys for editors.
func keys() []key {
	return []key{
		{"address", inNode, func(r *reader, s *settings, v yamldoc.Node) { s.address = r.word(v, checkAddress) }},
		{"port", inDefaults | inNode, func(r *reader, s *settings, v yamldoc.Node) { s.port = r.number(v, maxPort) }},
		{"user", inDefaults | inNode | inEnv, func(r *reader, s *settings, v yamldoc.Node) { s.user = r.word(v, checkUser) }},
		{"sudo", inDefaults | inNode | inEnv, func(r *reader, s *settings, v yamldoc.Node) { s.sudo = r.sudo(v) }},
		{"identity_file", inDefaults | inNode | inEnv, func(r *reader, s *settings, v yamldoc.Node) { s.identityFile = r.path(v) }},
		{"proxy_jump", inDefaults | inNode, func(r *reader, s *settings, v yamldoc.Node) { s.proxyJump = r.text(v, checkJump) }},
		{"groups", inDefaults | inNode, func(r *reader, s *settings, v yamldoc.Node) { s.groups = r.list(v, "groups", checkName).value }},
		{"python", inDefaults | inNode | inEnv, func(r *reader, s *settings, v yamldoc.Node) { s.python = r.word(v, checkPython) }},
		{"env", inDefaults | inNode | inEnv, func(r *reader, s *settings, v yamldoc.Node) { s.env = r.variables(v) }},
		{"setup", inDefaults | inNode | inEnv, func(r *reader, s *settings, v yamldoc.Node) { s.setup = r.text(v, nil) }},
		{"exec_prefix", inDefaults | inNode | inEnv, func(r *reader, s *settings, v yamldoc.Node) { s.execPrefix = r.list(v, "exec_prefix", checkWord) }},
		{"slots", inDefaults | inNode, func(r *reader, s *settings, v yamldoc.Node) { s.slots = r.number(v, maxSlots) }},
		{"envs", inDefaults | inNode, func(r *reader, s *settings, v yamldoc.Node) { s.envs = r.environments(v) }},
	}
}

// keysAt returns the keys that are allowed at a place.
func keysAt(p place) []key {
	return slices.DeleteFunc(keys(), func(k key) bool { return k.places&p == 0 })
}

// settings reads the pairs of a mapping that may hold the keys of a place. own names keys of the
// mapping that the caller reads itself; settings returns their values.
func (r *reader) settings(m yamldoc.Node, what string, p place, own ...string) (settings, map[string]yamldoc.Node) {
	table := keysAt(p)
	known := slices.Clone(own)
	for _, k := range table {
		known = append(known, k.name)
	}
	var s settings
	owned := make(map[string]yamldoc.Node)
	for _, pair := range r.Pairs(m, what, known) {
		if slices.Contains(own, pair.Key) {
			owned[pair.Key] = pair.Node
			continue
		}
		i := slices.IndexFunc(table, func(k key) bool { return k.name == pair.Key })
		table[i].read(r, &s, pair.Node)
	}
	return s, owned
}
