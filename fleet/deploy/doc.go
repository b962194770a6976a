// Package deploy installs wheels on the nodes of an inventory and verifies each node afterwards.
//
// A deploy has two phases. The survey connects to every node and probes it, and NewPlan, a pure function, decides the
// action on each. Incompatible nodes and ambiguous choices of wheels are rejected before anything is sent. Then Apply
// executes the plan on a limited number of nodes in parallel: put, install, verify, record. An agent on the node
// (deploy.py) holds the environment's lock and makes all changes. If it loses the controller, it rolls back on its own.
package deploy
