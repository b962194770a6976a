package pipeline

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestAvailableMemory(t *testing.T) {
	const gib = 1 << 30
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"free":         {map[string]string{"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   16777216 kB\n", "proc/self/cgroup": "0::/\n"}, 16 * gib},
		"unlimited":    {map[string]string{"proc/meminfo": "MemAvailable: 16777216 kB\n", "proc/self/cgroup": "0::/user.slice\n", "sys/fs/cgroup/user.slice/memory.max": "max\n"}, 16 * gib},
		"of the user":  {map[string]string{"proc/meminfo": "MemAvailable: 16777216 kB\n", "proc/self/cgroup": "0::/user.slice/user-1.slice/s.scope\n", "sys/fs/cgroup/user.slice/user-1.slice/memory.max": "8589934592\n"}, 8 * gib},
		"version 1":    {map[string]string{"proc/meminfo": "MemAvailable: 16777216 kB\n", "proc/self/cgroup": "3:cpu:/x\n5:memory:/slurm/job\n", "sys/fs/cgroup/memory/slurm/memory.limit_in_bytes": "4294967296\n"}, 4 * gib},
		"not readable": {nil, 1 << 62},
	} {
		root := t.TempDir()
		for name, text := range c.files {
			file := filepath.Join(root, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if got := availableMemory(root); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if n := CompileJobs(); n < 1 {
		t.Errorf("%d jobs", n)
	}
}
