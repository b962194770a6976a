// Package environment describes whole Python environments: the file in which a user says what is
// wanted (environment.yaml), and the lock, which lists every file for every kind of node. uv
// resolves the requirements; the files are collected by their sha256. Package envs (deploy/envs)
// puts an environment on nodes.
package environment
