// Package check says whether a cluster is ready for a job on several nodes.
//
// Most of such jobs that hang do so for a reason that can be found in a minute: a name
// that one node takes for another address, a port that is taken, two nodes that do not
// reach each other. All nodes are asked at once. On each runs one program (agent.py),
// which lives as long as its connection and leaves nothing behind; what the nodes
// say is judged here, by functions of what was said and nothing else. Last, the nodes
// do together what a job does: they sum numbers by torch.distributed, or by JAX.
package check

// Kind is a thing that is checked. Its name is part of reports and of --skip.
type Kind string

// What is checked, in this order.
const (
	Connect    Kind = "connect"    // the node is reached, and has a Python
	Versions   Kind = "versions"   // all run the same
	Variables  Kind = "variables"  // of the environment
	Devices    Kind = "devices"    // GPUs: how many, and how they are
	Names      Kind = "names"      // the master's address, and the node's own name
	Interface  Kind = "interface"  // by which nodes reach each other
	Port       Kind = "port"       // of the master
	Network    Kind = "network"    // each node reaches each other one, on any port
	SSH        Kind = "ssh"        // from the first node to the others
	Clock      Kind = "clock"      //
	Disk       Kind = "disk"       // room
	Paths      Kind = "paths"      // data and output
	Collective Kind = "collective" // all sum numbers together
)

// Skippable are the kinds that can be left out.
func Skippable() []Kind {
	return []Kind{Versions, Variables, Devices, Names, Interface, Port, Network, SSH, Clock, Disk, Paths, Collective}
}

// Level is how much a finding weighs.
type Level string

// The levels of findings.
const (
	Error   Level = "error"   // a job would fail or hang, or not do what is expected
	Warning Level = "warning" // worth knowing
)

// Finding is one thing that is wrong with a node, or worth knowing.
type Finding struct {
	Check Kind   `json:"check"`
	Level Level  `json:"level"`
	Text  string `json:"text"`
	Hint  string `json:"hint"`
}
