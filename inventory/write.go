package inventory

import (
	"errors"
	"fmt"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// HostfileLine returns a line of a hostfile in the form that DeepSpeed's launcher reads.
func HostfileLine(host string, slots int) string { return fmt.Sprintf("%s slots=%d\n", host, slots) }

// Hostfile writes the addresses that DeepSpeed dials, and the slots, which it requires. lost names the
// settings that a hostfile cannot hold: for each node, their keys in an inventory in YAML.
func (inv *Inventory) Hostfile() (text string, lost []Remark, err error) {
	if inv.Policy != "" {
		lost = append(lost, Remark{"", "policy"})
	}
	var out strings.Builder
	var without []string
	var errs []error
	at, last := make(map[string]string), ""
	for _, h := range inv.Hosts {
		if h.Node == last { // another environment of the node
			continue
		}
		last = h.Node
		for _, key := range h.lostKeys() {
			lost = append(lost, Remark{h.Node, key})
		}
		if other, twice := at[h.Address]; twice {
			errs = append(errs, fault.WithHint(fmt.Errorf("%s and %s have the same address %s, but a hostfile has one line for each address", other, h.Node, h.Address),
				"give each a name in ~/.ssh/config, and use it as the address"))
		}
		at[h.Address] = h.Node
		if h.Slots == 0 {
			without = append(without, h.Node)
		}
		out.WriteString(HostfileLine(h.Address, h.Slots))
	}
	if len(without) > 0 {
		errs = append(errs, fault.WithHint(fmt.Errorf("%s: the number of GPUs is unknown, and a hostfile needs it", ui.FoldNames(without)),
			"set it in the inventory: slots: 8 (dsbuild_slots=8 for Ansible)"))
	}
	if len(errs) > 0 {
		return "", nil, fault.WithCode(errors.Join(errs...), 2)
	}
	return out.String(), lost, nil
}

// lostKeys returns the keys of a node that have a value and no place in a hostfile.
func (h Host) lostKeys() []string {
	var keys []string
	for _, s := range []struct {
		key  string
		lost bool
	}{
		{"address", h.Address != h.Node}, {"port", h.Port != 0}, {"user", h.User != ""}, {"sudo", h.Sudo != ""},
		{"identity_file", h.IdentityFile != ""}, {"proxy_jump", h.ProxyJump != ""}, {"ssh_args", len(h.SSHArgs) > 0},
		{"groups", len(h.Groups) > 0}, {"python", h.Python != defaultPython}, {"env", len(h.Env) > 0},
		{"setup", h.Setup != ""}, {"exec_prefix", len(h.ExecPrefix) > 0}, {"envs", h.Name != h.Node},
	} {
		if s.lost {
			keys = append(keys, s.key)
		}
	}
	return keys
}
