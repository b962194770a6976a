// Package ship builds the wheels that the nodes of a fleet need and installs them.
// It asks the nodes, finds the fewest wheels that serve all of them, builds those
// that are missing, and puts each wheel on the nodes it fits. It combines packages
// pipeline and deploy.
package ship
