// Package deploy puts wheels on the nodes of an inventory and verifies each node afterwards.
//
// It works in two halves. In the survey, dsbuild connects to every node and probes it, and NewPlan decides the
// action for each; NewPlan is pure. dsbuild refuses a node that the wheel does not fit, and an ambiguous choice of
// wheels, before it sends a byte. Then Apply carries out the plan through a sliding window: put, install, verify,
// record. One program on the node (deploy.py) holds the lock of the environment and makes all changes. If it loses
// the controller, it restores the environment by itself.
package deploy
