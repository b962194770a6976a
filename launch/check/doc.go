// Package check tests whether a cluster is ready for a job on several nodes.
//
// Most such jobs hang for a reason that a check finds in a minute: a name that one node
// resolves differently, a port in use, two nodes without a connection. dsbuild asks all
// nodes at once. One program (check_cluster.py) runs on each node; it ends with its connection
// and leaves nothing behind. This package judges the answers with pure functions. At
// the end the nodes run an all_reduce together, with torch.distributed or with JAX.
package check

// Kind is a check. Its name appears in reports and in --skip.
type Kind string

// The checks, in the order in which the help of --skip and the documentation list them. Run calls
// them in another order.
const (
	Connect    Kind = "connect"    // connection, and a Python on the node
	Versions   Kind = "versions"   // all nodes run the same software
	Variables  Kind = "variables"  // of the environment
	Devices    Kind = "devices"    // number and health of GPUs
	Names      Kind = "names"      // the master's address, and the node's own name
	Interface  Kind = "interface"  // interfaces between the nodes
	Port       Kind = "port"       // of the master
	Network    Kind = "network"    // connections between all nodes, on any port
	Disk       Kind = "disk"       // free space
	Paths      Kind = "paths"      // data and output
	Collective Kind = "collective" // all nodes sum numbers together
)

// Skippable are the checks that --skip may leave out.
func Skippable() []Kind {
	return []Kind{Versions, Variables, Devices, Names, Interface, Port, Network, Disk, Paths, Collective}
}

// Level is the severity of a finding.
type Level string

// The levels of findings.
const (
	Error   Level = "error"   // a job would fail, hang or do something wrong
	Warning Level = "warning" // worth knowing
)

// Finding is a problem of a node, or a remark about it.
type Finding struct {
	Check Kind   `json:"check"`
	Level Level  `json:"level"`
	Text  string `json:"text"`
	Hint  string `json:"hint"`

	cause string // Text without the values of the node itself; "": all of Text
}
