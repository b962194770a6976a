// Package inventory reads inventories: lists of nodes with their connection settings.
package inventory

import "slices"

// Inventory is a validated list of nodes, in the order of the file.
type Inventory struct {
	// Path is the name that Open got ("-" for standard input).
	Path string
	// KnownHosts is the absolute path of the file of accepted host keys. It is empty for the user's own.
	KnownHosts string
	// Policy is the absolute path of the signing policy. It is empty if nodes accept any wheel.
	Policy string
	Hosts  []Host
	// Outside are the hosts that are not selected.
	Outside []Host
	// Notes list the settings of another tool's inventory that are ignored or changed.
	Notes []Note

	faults []unusable // why some nodes of another tool's inventory are unusable; reported by Select
	format format
}

// Key returns the inventory's key for a setting, which is named by its key in dsbuild's own format. It returns "" if the
// format has none. Without an inventory, the format is dsbuild's own.
func (inv *Inventory) Key(setting string) string {
	switch {
	case inv == nil || inv.format == ownYAML:
		return setting + ":"
	case inv.format != ofAnsible && inv.format != ansibleList:
		return ""
	case slices.Contains(ownVars(), setting):
		return "dsbuild_" + setting
	}
	return map[string]string{
		"address": "ansible_host", "identity_file": "ansible_ssh_private_key_file", "port": "ansible_port", "user": "ansible_user",
	}[setting]
}

// Note is a note for the user about a node or, without a node, about the whole inventory.
type Note struct{ Node, Text string }

// Host is one node with one Python environment: the unit of work and of the
// report. A node with several envs gives several Hosts named node/env.
type Host struct {
	Name         string            `json:"name"`                    // unique: node or node/env
	Node         string            `json:"node"`                    // the node's name
	Address      string            `json:"address"`                 // host name or IP address; the node's name by default
	Port         int               `json:"port,omitempty"`          // zero if not set
	User         string            `json:"user,omitempty"`          // empty if not set
	Sudo         string            `json:"sudo,omitempty"`          // target user of sudo; empty without sudo
	IdentityFile string            `json:"identity_file,omitempty"` // absolute; empty if not set
	ProxyJump    string            `json:"proxy_jump,omitempty"`    // [user@]host[:port][,...]; empty if not set
	SSHArgs      []string          `json:"ssh_args,omitempty"`      // additional ssh arguments from an Ansible inventory
	Groups       []string          `json:"groups"`                  //
	Python       string            `json:"python"`                  // absolute path or command name; "python3" by default
	Env          map[string]string `json:"env,omitempty"`           // environment variables of every command
	Setup        string            `json:"setup,omitempty"`         // shell line run before each command
	ExecPrefix   []string          `json:"exec_prefix,omitempty"`   // command prefix, such as a container runner
	Slots        int               `json:"slots,omitempty"`         // number of GPUs, for launchers, or 0 if not set
	Position     string            `json:"position"`                // file:line:column of its entry
}
