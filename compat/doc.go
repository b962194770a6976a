// Package compat knows what goes with what: which CUDA a torch brings, which
// archs a CUDA compiles for, what an op needs, and whether a finished wheel
// runs on a node. The tables are data files with their source and date.
package compat
