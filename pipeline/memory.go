package pipeline

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// jobBytes is the maximum memory of a compiler process with torch's headers.
const jobBytes = 2 << 30

// CompileJobs returns the number of parallel compilers that this process's cores and the available
// memory allow. On a login node, both are often less than the machine's.
func CompileJobs() int {
	return max(1, min(runtime.GOMAXPROCS(0), int(availableMemory("/")/jobBytes)))
}

// availableMemory returns the memory available to this process: the free memory, or the lowest
// limit of its control groups. root is the parent of /proc and /sys.
func availableMemory(root string) int64 {
	free := int64(1) << 62
	for line := range strings.Lines(readSmall(root, "proc/meminfo")) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			if kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64); err == nil {
				free = kb << 10
			}
		}
	}
	for line := range strings.Lines(readSmall(root, "proc/self/cgroup")) {
		_, group, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, _ := strings.Cut(group, ":")
		switch controllers {
		case "":
			free = min(free, groupLimit(root, "sys/fs/cgroup", group, "memory.max"))
		case "memory":
			free = min(free, groupLimit(root, "sys/fs/cgroup/memory", group, "memory.limit_in_bytes"))
		}
	}
	return free
}

// groupLimit returns the lowest limit of a control group and its parents. It ignores the group's
// current usage, which is mostly cached files.
func groupLimit(root, tree, group, file string) int64 {
	lowest := int64(1) << 62
	for {
		if limit, err := strconv.ParseInt(readSmall(root, filepath.Join(tree, group, file)), 10, 64); err == nil {
			lowest = min(lowest, limit)
		}
		if group == "/" || group == "." || group == "" {
			return lowest
		}
		group = filepath.Dir(group)
	}
}

// readSmall returns a small file's content, or "" if the file is unreadable.
func readSmall(root, file string) string {
	b, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
