// Package check tests whether a cluster is ready for a job on several nodes.
//
// Most such jobs hang for a reason that a check finds in a minute: a name that one node
// resolves differently, a port in use, two nodes without a connection. All nodes are checked in
// parallel. A program (check_cluster.py) runs on each node, ends with its connection and leaves
// nothing behind. This package evaluates the results with pure functions. At the end the nodes
// run an all_reduce together, with torch.distributed or with JAX.
package check

// Check is a check. Its name appears in reports and in --skip.
type Check string

// The checks, in the order in which the help of --skip and the documentation list them. Run calls
// them in another order.
const (
	Connect    Check = "connect"    // connection, and a Python on the node
	Versions   Check = "versions"   // all nodes run the same software
	Variables  Check = "variables"  // of the environment
	Devices    Check = "devices"    // number and health of GPUs
	Names      Check = "names"      // the master's address, and the node's own name
	Interface  Check = "interface"  // interfaces between the nodes
	Port       Check = "port"       // of the master
	Network    Check = "network"    // connections between all nodes, on any port
	Disk       Check = "disk"       // free space
	Paths      Check = "paths"      // data and output
	Collective Check = "collective" // an all-reduce over all nodes
)

// Skippable returns the checks that --skip accepts.
func Skippable() []Check {
	return []Check{Versions, Variables, Devices, Names, Interface, Port, Network, Disk, Paths, Collective}
}

// Level is the severity of a finding.
type Level string

// The levels of findings.
const (
	Error   Level = "error"   // a job would fail, hang or do something wrong
	Warning Level = "warning" // worth knowing
)

// Finding is a problem of a node, or a note about it.
type Finding struct {
	Check Check  `json:"check"`
	Level Level  `json:"level"`
	Text  string `json:"text"`
	Hint  string `json:"hint"`

	cause string // Text without the node's own values, if it has any
}
