package pipeline

import (
	"bufio"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// What one build can use. The default ops are four translation units, so more
// cores idle in one build; a compiler takes up to 2 GiB with torch's headers
// (0.8 GB for the headers alone, more in nvcc).
const (
	coresOfBuild  = 4
	memoryOfBuild = coresOfBuild * 2 << 30
)

// BuildsAtOnce is how many builds this machine runs side by side: as many as
// have cores and memory for themselves, and one in any case.
func BuildsAtOnce() int { return buildsAtOnce(runtime.NumCPU(), memory()) }

func buildsAtOnce(cores int, memory int64) int {
	n := cores / coresOfBuild
	if memory > 0 {
		n = min(n, int(memory/memoryOfBuild))
	}
	return max(n, 1)
}

// JobsOf is how many compile jobs each of several builds side by side gets; 0,
// as many as there are cores, for one alone.
func JobsOf(builds int) int {
	if builds < 2 {
		return 0
	}
	return max(runtime.NumCPU()/builds, 1)
}

// memory is how many bytes this machine has; 0 where it does not say so.
func memory() int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "MemTotal:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			return kib << 10
		}
	}
	return 0
}
