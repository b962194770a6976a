package inventory

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Writers returns the names of the formats in which Write can write an inventory.
func Writers() []string { return []string{"hostfile", "slurm", "ansible", "yaml"} }

// Write writes the inventory in one of the formats of Writers. lost names the values that the
// format cannot hold: for each node, their keys in an inventory in YAML.
func (inv *Inventory) Write(format string) (text string, lost []Remark, err error) {
	nodes := inv.nodes()
	var whole []Remark
	if inv.Policy != "" {
		whole = append(whole, Remark{"", "policy"})
	}
	switch format {
	case "hostfile":
		text, err = inv.hostfile(nodes)
		return text, append(whole, losses(nodes, "slots")...), err
	case "slurm":
		return inv.slurm(nodes) + "\n", append(whole, losses(nodes)...), nil
	case "ansible":
		text, lost, err := inv.ansible(nodes)
		return text, append(whole, lost...), err
	case "yaml":
		return inv.yaml(nodes), nil, nil
	}
	return "", nil, fmt.Errorf("dsbuild cannot write an inventory as %q", format)
}

// envEntry is an environment of a node in the form of the YAML inventory.
type envEntry struct {
	Name         string            `key:"name"`
	User         string            `key:"user"`
	Sudo         string            `key:"sudo"`
	IdentityFile string            `key:"identity_file"`
	Python       string            `key:"python"`
	Env          map[string]string `key:"env"`
	Setup        string            `key:"setup"`
	ExecPrefix   []string          `key:"exec_prefix"`
}

// nodeEntry is a node, or several that differ only in their names.
type nodeEntry struct {
	Hosts        string            `key:"hosts"`
	Address      string            `key:"address"`
	Port         int               `key:"port"`
	User         string            `key:"user"`
	Sudo         string            `key:"sudo"`
	IdentityFile string            `key:"identity_file"`
	ProxyJump    string            `key:"proxy_jump"`
	Groups       []string          `key:"groups"`
	Python       string            `key:"python"`
	Env          map[string]string `key:"env"`
	Setup        string            `key:"setup"`
	ExecPrefix   []string          `key:"exec_prefix"`
	Slots        int               `key:"slots"`
	Envs         []envEntry        `key:"envs"`
}

// nodes puts the environments of each node together again.
func (inv *Inventory) nodes() []nodeEntry {
	hosts := make(map[string][]Host)
	var order []string
	for _, h := range inv.Hosts {
		if hosts[h.Node] == nil {
			order = append(order, h.Node)
		}
		hosts[h.Node] = append(hosts[h.Node], h)
	}
	all := make([]nodeEntry, len(order))
	for i, name := range order {
		all[i] = newNodeEntry(hosts[name])
	}
	return all
}

func newNodeEntry(hosts []Host) nodeEntry {
	h := hosts[0]
	n := nodeEntry{
		Hosts: h.Node, Port: h.Port, ProxyJump: h.ProxyJump, Groups: h.Groups, Slots: h.Slots,
	}
	if h.Address != h.Node {
		n.Address = h.Address
	}
	envs := make([]envEntry, len(hosts))
	for i, h := range hosts {
		envs[i] = envEntry{
			Name: strings.TrimPrefix(h.Name, h.Node+"/"), User: h.User, Sudo: h.Sudo, IdentityFile: h.IdentityFile,
			Python: h.Python, Env: h.Env, Setup: h.Setup, ExecPrefix: h.ExecPrefix,
		}
		if h.Python == defaultPython {
			envs[i].Python = ""
		}
	}
	// A value that all environments have becomes the node's.
	share(envs, &n.User, func(e *envEntry) *string { return &e.User })
	share(envs, &n.Sudo, func(e *envEntry) *string { return &e.Sudo })
	share(envs, &n.IdentityFile, func(e *envEntry) *string { return &e.IdentityFile })
	share(envs, &n.Python, func(e *envEntry) *string { return &e.Python })
	share(envs, &n.Env, func(e *envEntry) *map[string]string { return &e.Env })
	share(envs, &n.Setup, func(e *envEntry) *string { return &e.Setup })
	share(envs, &n.ExecPrefix, func(e *envEntry) *[]string { return &e.ExecPrefix })
	if h.Name != h.Node {
		n.Envs = envs
	}
	return n
}

// share moves a value that all elements have to their common parent.
func share[E, T any](all []E, to *T, of func(*E) *T) {
	var none T
	first := *of(&all[0])
	for i := range all {
		if !reflect.DeepEqual(*of(&all[i]), first) {
			return
		}
	}
	for i := range all {
		*of(&all[i]) = none
	}
	*to = first
}

// keys returns the keys of a node that have a value, without its name.
func (n nodeEntry) keys() []string {
	var all []string
	v := reflect.ValueOf(n)
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("key")
		if name != "hosts" && !v.Field(i).IsZero() && (v.Field(i).Kind() != reflect.Slice || v.Field(i).Len() > 0) {
			all = append(all, name)
		}
	}
	return all
}

// losses returns the keys of the nodes that the format does not keep.
func losses(nodes []nodeEntry, kept ...string) []Remark {
	var lost []Remark
	for _, n := range nodes {
		for _, key := range n.keys() {
			if !slices.Contains(kept, key) {
				lost = append(lost, Remark{n.Hosts, key})
			}
		}
	}
	return lost
}

// HostfileLine returns a line of a hostfile in the form that DeepSpeed's launcher reads.
func HostfileLine(host string, slots int) string { return fmt.Sprintf("%s slots=%d\n", host, slots) }

// hostfile writes the addresses that DeepSpeed dials, and the slots, which it requires.
func (inv *Inventory) hostfile(nodes []nodeEntry) (string, error) {
	var out strings.Builder
	var without []string
	var errs []error
	at := make(map[string]string)
	for _, n := range nodes {
		address := n.Hosts
		if n.Address != "" {
			address = n.Address
		}
		if other, twice := at[address]; twice {
			errs = append(errs, hint.With(fmt.Errorf("%s and %s have the same address %s, but a hostfile has one line for each address", other, n.Hosts, address),
				"give each a name in ~/.ssh/config, and use it as the address"))
		}
		at[address] = n.Hosts
		if n.Slots == 0 {
			without = append(without, n.Hosts)
		}
		out.WriteString(HostfileLine(address, n.Slots))
	}
	if len(without) > 0 {
		errs = append(errs, hint.With(fmt.Errorf("%s: the number of GPUs is unknown, and a hostfile needs it", ui.FoldNames(without)),
			"set it in the inventory: slots: 8 (dsbuild_slots=8 for Ansible)"))
	}
	if len(errs) > 0 {
		return "", hint.Coded(errors.Join(errs...), 2)
	}
	return out.String(), nil
}

// slurm writes the names in Slurm's way: only the number at the end of a name becomes a range.
// Slurm does not accept text after brackets, and reorders names with several brackets.
func (inv *Inventory) slurm(nodes []nodeEntry) string {
	alike := make(map[string][]string)
	var order []string
	for _, n := range nodes {
		stem := strings.TrimRight(n.Hosts, "0123456789")
		if alike[stem] == nil {
			order = append(order, stem)
		}
		alike[stem] = append(alike[stem], n.Hosts)
	}
	words := make([]string, len(order))
	for i, stem := range order {
		words[i] = ui.FoldNames(alike[stem])
	}
	return strings.Join(words, ",")
}

// common removes the values that all nodes share from the nodes, and returns them.
func common(nodes []nodeEntry) nodeEntry {
	var all nodeEntry
	if len(nodes) < 2 {
		return all
	}
	share(nodes, &all.Port, func(n *nodeEntry) *int { return &n.Port })
	share(nodes, &all.User, func(n *nodeEntry) *string { return &n.User })
	share(nodes, &all.Sudo, func(n *nodeEntry) *string { return &n.Sudo })
	share(nodes, &all.IdentityFile, func(n *nodeEntry) *string { return &n.IdentityFile })
	share(nodes, &all.ProxyJump, func(n *nodeEntry) *string { return &n.ProxyJump })
	share(nodes, &all.Python, func(n *nodeEntry) *string { return &n.Python })
	share(nodes, &all.Env, func(n *nodeEntry) *map[string]string { return &n.Env })
	share(nodes, &all.Setup, func(n *nodeEntry) *string { return &n.Setup })
	share(nodes, &all.ExecPrefix, func(n *nodeEntry) *[]string { return &n.ExecPrefix })
	share(nodes, &all.Slots, func(n *nodeEntry) *int { return &n.Slots })
	return all
}
