package remote

import "sync"

// seats are how many sessions may be open at a master's node at once, of all of
// dsbuild. A node has ten (MaxSessions), for the master's owner as well.
const seats = 8

// masters are the OpenSSH processes on this machine that are ridden on.
type masters struct {
	mu    sync.Mutex
	taken map[string]int // seats, by the master's socket
}

func (m *masters) take(path string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.taken[path] >= seats {
		return false
	}
	m.taken[path]++
	return true
}

func (m *masters) free(path string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.taken[path]--; m.taken[path] == 0 {
		delete(m.taken, path)
	}
}
