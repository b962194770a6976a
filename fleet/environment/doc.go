// Package environment describes complete Python environments: the request (environment.yaml), and the
// lockfile, which lists every file for every node type. uv resolves the requirements, and files are
// collected by sha256. Package envdeploy installs environments on nodes.
package environment
