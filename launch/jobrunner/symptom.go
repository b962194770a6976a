package jobrunner

import (
	"fmt"
	"regexp"
)

// Symptom is a known message of failing jobs, with advice.
type Symptom struct {
	// Name is its heading in docs/troubleshooting.md.
	Name string
	// Sign matches the last lines.
	Sign *regexp.Regexp
	// Try is the advice.
	Try string
}

// Symptoms are the known ones, the most specific first.
func Symptoms() []Symptom {
	sign := regexp.MustCompile
	return []Symptom{
		{
			"Memory cannot be locked", sign(`(?i)ibv_\w+.*(Cannot allocate memory|ENOMEM)|RLIMIT_MEMLOCK|max locked memory`),
			"RDMA locks memory: 'ulimit -l' must print unlimited in a job (LimitMEMLOCK=infinity for slurmd or sshd)",
		},
		{
			"The switches of NVLink are not ready", sign(`(?i)system not yet initialized|\berror:? 80[12]\b|fabric ?manager`),
			"on nodes with NVSwitch 'systemctl status nvidia-fabricmanager' must say active, in the driver's version",
		},
		{
			"Out of memory",
			sign(`(?i)out of memory|OutOfMemoryError|RESOURCE_EXHAUSTED|CUBLAS_STATUS_ALLOC_FAILED|Cannot allocate memory`),
			"use a smaller micro batch with more accumulation, gradient checkpointing, a higher ZeRO stage, offload",
		},
		{
			"The port is in use", sign(`(?i)address already in use|EADDRINUSE|port \d+ is in use`),
			"another job uses the port: choose another one with --port",
		},
		{
			"No space", sign(`(?i)no space left on device|disk quota exceeded`),
			"'dsbuild check' names full disks",
		},
		{
			"A module is missing or has another version",
			sign(`ModuleNotFoundError|ImportError|undefined symbol|No module named|GLIBC`),
			"'dsbuild verify' names nodes that differ; 'dsbuild deploy' makes them the same",
		},
		{
			"A file is missing on some nodes",
			sign(`FileNotFoundError|No such file or directory|file not found: /|directory not found: `),
			"the program and its data must have the same path on all nodes (a shared folder, or copies); " +
				"--workdir sets the folder of the job",
		},
		{
			"A folder cannot be written", sign(`PermissionError|Permission denied|Read-only file system`),
			"outputs need a folder that every node can write",
		},
		{
			"The interpreter is missing", sign(`Python not found: |torchrun: command not found|exec: torchrun: not found`),
			"name the interpreter with --python, or for each node in the inventory",
		},
		{
			"Nodes do not find each other",
			sign(`(?i)timed? ?out|timeout|connection refused|name or service not known|no route to host|rendezvous`),
			"'dsbuild check' names nodes that do not reach each other, and closed ports",
		},
	}
}

// adviceFor returns advice for the last lines and the signal; "" without a known
// symptom.
func adviceFor(said string, signal int, node string) string {
	for _, s := range Symptoms() {
		if s.Sign.MatchString(said) {
			return s.Try
		}
	}
	switch signals[signal] {
	case "KILL":
		return fmt.Sprintf("another process killed it: run 'dmesg' on %s to see whether it ran out of main memory", node)
	case "SEGV", "ILL", "BUS":
		return "run 'dsbuild verify': do the operators load on " + node + ", and fit its CPU?"
	}
	return ""
}
