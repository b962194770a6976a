package crew

import (
	"fmt"
	"regexp"
)

// Symptom is something that failing jobs say, and what helps.
type Symptom struct {
	// Name is its heading in docs/troubleshooting.md.
	Name string
	// Sign is found in the last lines.
	Sign *regexp.Regexp
	// Try is what can be done; %s in it is the node.
	Try string
}

// Symptoms are those that are known, the more telling ones first.
func Symptoms() []Symptom {
	sign := regexp.MustCompile
	return []Symptom{
		{"Out of memory", sign(`(?i)out of memory|OutOfMemoryError|RESOURCE_EXHAUSTED|CUBLAS_STATUS_ALLOC_FAILED|Cannot allocate memory`), "fewer samples at once and more accumulated steps, gradient checkpointing, a higher ZeRO stage, offload"},
		{"The port is in use", sign(`(?i)address already in use|EADDRINUSE|port \d+ is in use`), "another job has the port: say another by --port"},
		{"No space", sign(`(?i)no space left on device|disk quota exceeded`), "'dsbuild check' names disks that are full"},
		{"A module is missing or of another version", sign(`ModuleNotFoundError|ImportError|undefined symbol|No module named|GLIBC`), "'dsbuild verify' names nodes that differ; 'dsbuild deploy' makes them the same"},
		{"A file is missing on some nodes", sign(`FileNotFoundError|No such file or directory|there is no /|there is no folder`), "the program and its data must be on all nodes, under the same path: a shared folder, or copies; --workdir says in which folder the job runs"},
		{"A folder cannot be written", sign(`PermissionError|Permission denied|Read-only file system`), "outputs need a folder that every node can write"},
		{"The interpreter is missing", sign(`there is no Python|torchrun: command not found|exec: torchrun: not found`), "say the interpreter by --python, or for each node in the inventory"},
		{"Nodes do not find each other", sign(`(?i)timed? ?out|timeout|connection refused|name or service not known|no route to host|rendezvous`), "'dsbuild check' names nodes that do not reach each other, and ports that are closed"},
	}
}

// advice is what helps, by what was said last and the signal; "" where nothing
// is known.
func advice(said string, signal int, node string) string {
	for _, s := range Symptoms() {
		if s.Sign.MatchString(said) {
			return s.Try
		}
	}
	switch signals[signal] {
	case "KILL":
		return fmt.Sprintf("killed from outside: where %s ran out of main memory, 'dmesg' there says so", node)
	case "SEGV", "ILL", "BUS":
		return "'dsbuild verify' says whether the operators load on " + node + ", and fit its CPU"
	}
	return ""
}
