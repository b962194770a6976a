// Package compat decides which versions go together: the CUDA of a torch, the archs of a
// CUDA, the needs of an op, and whether a finished wheel runs on a node. The tables are
// data files with their source and date.
package compat
