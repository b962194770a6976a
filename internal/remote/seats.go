package remote

import "sync"

// seats limits dsbuild's open sessions at the node of one user's master. A node allows ten
// (MaxSessions), and the master's owner needs some of them.
const seats = 8

// masters counts dsbuild's sessions at the OpenSSH masters that the user started.
type masters struct {
	mu    sync.Mutex
	taken map[string]int // used seats by the master's socket
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
