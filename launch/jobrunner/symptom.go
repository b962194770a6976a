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

// Symptoms returns the known symptoms, the most specific first.
func Symptoms() []Symptom {
	sign := regexp.MustCompile
	return []Symptom{
		{
			"Cannot lock memory", sign(`(?i)ibv_\w+.*(Cannot allocate memory|ENOMEM)|RLIMIT_MEMLOCK|max locked memory`),
			"raise the locked memory limit for RDMA: 'ulimit -l' must print unlimited in a job (LimitMEMLOCK=infinity for slurmd or sshd)",
		},
		{
			"NVLink switches not ready", sign(`(?i)system not yet initialized|\berror:? 80[12]\b|fabric ?manager`),
			"on nodes with NVSwitch, check that nvidia-fabricmanager is active and has the driver's version: systemctl status nvidia-fabricmanager",
		},
		{
			"Out of memory",
			sign(`(?i)out of memory|OutOfMemoryError|RESOURCE_EXHAUSTED|CUBLAS_STATUS_ALLOC_FAILED|Cannot allocate memory`),
			"use a smaller micro batch with more accumulation steps, gradient checkpointing, a higher ZeRO stage, or offloading",
		},
		{
			"Port in use", sign(`(?i)address already in use|EADDRINUSE|port \d+ is in use`),
			"use another port: --port PORT",
		},
		{
			"No space", sign(`(?i)no space left on device|disk quota exceeded`),
			"to find full disks, run 'dsbuild check'",
		},
		{
			"Missing module or different version",
			sign(`ModuleNotFoundError|ImportError|undefined symbol|No module named|GLIBC`),
			"to find nodes that differ, run 'dsbuild verify'; to update them, run 'dsbuild deploy'",
		},
		{
			"File missing on some nodes",
			sign(`FileNotFoundError|No such file or directory|file not found: /|directory not found: `),
			"make the program and its data available at the same path on all nodes (shared or copied), " +
				"or set the working directory with --workdir",
		},
		{
			"Directory not writable", sign(`PermissionError|Permission denied|Read-only file system`),
			"use an output directory that every node can write to",
		},
		{
			"Interpreter not found", sign(`Python not found: |torchrun: command not found|exec: torchrun: not found`),
			"set the interpreter with --python, or python: in the inventory",
		},
		{
			"Nodes cannot reach each other",
			sign(`(?i)timed? ?out|timeout|connection refused|name or service not known|no route to host|rendezvous`),
			"to find unreachable nodes and closed ports, run 'dsbuild check'",
		},
	}
}

// adviceFor returns advice for the last lines and the signal. It returns "" for unknown symptoms.
func adviceFor(said string, signal int, node string) string {
	for _, s := range Symptoms() {
		if s.Sign.MatchString(said) {
			return s.Try
		}
	}
	switch signals[signal] {
	case "KILL":
		return fmt.Sprintf("run 'dmesg' on %s to see whether the kernel killed it because memory ran out", node)
	case "SEGV", "ILL", "BUS":
		return "run 'dsbuild verify' to check that the ops load on " + node + " and match its CPU"
	}
	return ""
}
