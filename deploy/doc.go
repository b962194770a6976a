// Package deploy brings wheels to the nodes of an inventory and proves what
// each of them runs afterwards.
//
// It works in two phases. First every node is reached and probed, and NewPlan
// decides purely what is to happen on each; a node that does not fit, and a
// choice of wheels that is not clear, are refused here, before a byte is sent.
// Then the plan is applied through a sliding window: put, install, verify,
// record. An environment is changed by one program on the node that holds its
// lock and puts everything back by itself when the driver goes away (agent.py).
package deploy
