package inventory

import (
	"errors"
	"fmt"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Hostfile returns the inventory as a DeepSpeed hostfile, which holds only addresses and slots. Every node
// must have slots.
func (inv *Inventory) Hostfile() (string, error) {
	var out strings.Builder
	var without []string
	var errs []error
	at, last := make(map[string]string), ""
	for _, h := range inv.Hosts {
		if h.Node == last { // another environment of the node
			continue
		}
		last = h.Node
		if other, twice := at[h.Address]; twice {
			err := fmt.Errorf("%s and %s have the same address %s, but hostfile entries must be unique",
				other, h.Node, h.Address)
			errs = append(errs, fault.WithHint(err, "name each host in ~/.ssh/config, and use the name as the address"))
		}
		at[h.Address] = h.Node
		if h.Slots == 0 {
			without = append(without, h.Node)
		}
		fmt.Fprintf(&out, "%s slots=%d\n", h.Address, h.Slots)
	}
	if len(without) > 0 {
		err := fmt.Errorf("%s: unknown number of GPUs, which a hostfile requires", ui.FoldNames(without))
		errs = append(errs, fault.WithHint(err, "set it in the inventory: slots: 8 (dsbuild_slots=8 for Ansible)"))
	}
	if len(errs) > 0 {
		return "", fault.WithCode(errors.Join(errs...), 2)
	}
	return out.String(), nil
}
