package remote

import (
	"io"
	"sync"
	"sync/atomic"
)

// Gate connects a program on a node with a stream of the caller, which may be nil, until it is
// closed. An abandoned command may still be running after Run has returned.
type Gate struct {
	mu   sync.Mutex
	shut atomic.Bool
	w    io.Writer
	r    io.Reader
}

// NewDetachableWriter returns a Gate that passes writes on to w.
func NewDetachableWriter(w io.Writer) *Gate { return &Gate{w: w} }

// NewDetachableReader returns a Gate that passes reads on to r.
func NewDetachableReader(r io.Reader) *Gate { return &Gate{r: r} }

// Close closes the gate. After it returns, the gate writes nothing to the caller's stream. Close
// does not wait for a reader.
func (g *Gate) Close() {
	if g.w != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
	}
	g.shut.Store(true)
}

// Write implements io.Writer.
func (g *Gate) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.w == nil || g.shut.Load() {
		return len(b), nil
	}
	return g.w.Write(b)
}

// Read implements io.Reader.
func (g *Gate) Read(b []byte) (int, error) {
	if g.r == nil || g.shut.Load() {
		return 0, io.EOF
	}
	return g.r.Read(b)
}
