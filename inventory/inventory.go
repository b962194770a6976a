// Package inventory reads the list of nodes, and how to reach them.
package inventory

// Inventory is a validated list of nodes, in the order of the file.
type Inventory struct {
	// Path is the file that holds the inventory ("-" for standard input).
	Path string
	// KnownHosts is the file of accepted host keys, absolute; "" means the user's own.
	KnownHosts string
	// Policy is the file that says which wheels the nodes accept, absolute; "" means any.
	Policy string
	Hosts  []Host
	// Notes tell where dsbuild does not follow the inventory of another tool.
	Notes []Note

	faults []unusable // why dsbuild cannot use some nodes of another tool's inventory: Select reports it
}

// Note is a note for the user about a node or, without a node, about the whole inventory.
type Note struct{ Node, Text string }

// Host is one node with one Python environment: the unit of work and of the
// report. A node with several envs gives several Hosts named node/env.
type Host struct {
	Name         string            `json:"name"`                    // unique: node or node/env
	Node         string            `json:"node"`                    // the node's name
	Address      string            `json:"address"`                 // the address to dial; the node's name if not given
	Port         int               `json:"port,omitempty"`          // 0: not given
	User         string            `json:"user,omitempty"`          // "": not given
	Sudo         string            `json:"sudo,omitempty"`          // the user that sudo switches to; "": the login user
	IdentityFile string            `json:"identity_file,omitempty"` // absolute; "": not given
	ProxyJump    string            `json:"proxy_jump,omitempty"`    // [user@]host[:port][,...]; "": not given
	SSHArgs      []string          `json:"ssh_args,omitempty"`      // more arguments of ssh, of an Ansible inventory
	Groups       []string          `json:"groups"`                  //
	Python       string            `json:"python"`                  // absolute or a command name; "python3" if not given
	Env          map[string]string `json:"env,omitempty"`           // variables set for every command
	Setup        string            `json:"setup,omitempty"`         // shell line run before each command
	ExecPrefix   []string          `json:"exec_prefix,omitempty"`   // words put before each command
	Slots        int               `json:"slots,omitempty"`         // GPUs for launchers; 0: not given
	Position     string            `json:"position"`                // file:line:column of its entry
}
