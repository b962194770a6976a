// Package environment describes whole Python environments: the user's request (environment.yaml),
// and the lock, which lists every file for every kind of node. uv resolves the requirements;
// dsbuild collects the files by their sha256. Package envs (fleet/envdeploy) puts an environment on nodes.
package environment
