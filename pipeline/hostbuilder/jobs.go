package hostbuilder

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// jobBytes is the memory that one compiler of torch's headers takes at most.
const jobBytes = 2 << 30

// jobs is how many compilers run at once: as many as there are cores for this
// process (by affinity and quota), and as memory allows, which on a login node
// is often less than the machine's.
func jobs() int {
	return max(1, min(runtime.GOMAXPROCS(0), int(memory("/")/jobBytes)))
}

// memory is how many bytes may still be taken: what is free, or less where a
// limit is set on the groups this process is in. root is that of /proc and /sys.
func memory(root string) int64 {
	free := int64(1) << 62
	for line := range strings.Lines(text(root, "proc/meminfo")) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			if kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64); err == nil {
				free = kb << 10
			}
		}
	}
	for line := range strings.Lines(text(root, "proc/self/cgroup")) {
		_, group, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, _ := strings.Cut(group, ":")
		switch controllers {
		case "":
			free = min(free, limited(root, "sys/fs/cgroup", group, "memory.max"))
		case "memory":
			free = min(free, limited(root, "sys/fs/cgroup/memory", group, "memory.limit_in_bytes"))
		}
	}
	return free
}

// limited is the lowest limit on a control group and on those above it. What
// the group holds already is mostly cached files, and not counted.
func limited(root, tree, group, file string) int64 {
	lowest := int64(1) << 62
	for {
		if limit, err := strconv.ParseInt(text(root, filepath.Join(tree, group, file)), 10, 64); err == nil {
			lowest = min(lowest, limit)
		}
		if group == "/" || group == "." || group == "" {
			return lowest
		}
		group = filepath.Dir(group)
	}
}

// text is a small file's content, "" where there is none.
func text(root, file string) string {
	b, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
