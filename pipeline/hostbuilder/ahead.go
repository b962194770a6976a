package hostbuilder

import (
	"context"
	"io"
	"os"
	"sync"

	"github.com/dsbuild/dsbuild/pipeline"
)

// job is a step that is about to be run: its places and its program.
type job struct {
	at      pipeline.Places
	program process
	done    func() // removes its places but for its output
}

// ahead is a step that has begun before its inputs are there (pipeline.Step.Ahead).
// Importing torch is most of a smoke test, and while setup.py does the same for the
// compile step another core has nothing to do.
type ahead struct {
	stdout, stderr latch
	program        chan error // its end
	laid           chan error // nil when its places are there, else why they are not
	at             pipeline.Places
	ready          *os.File // its standard input
	stop           func()   // ends it, and waits for that
}

// startAhead has all steps begin that come after s and may: with the first that has to
// be run, for then they will have to be as well.
func (r *run) startAhead(ctx context.Context, s pipeline.Step) {
	comes := false
	for _, later := range r.plan.Steps {
		if later.Name == s.Name {
			comes = true
			continue
		}
		if !comes || !later.Ahead || r.begun[later.Name] != nil {
			continue
		}
		stdin, ready, err := os.Pipe()
		if err != nil {
			return // then it begins when its turn comes
		}
		ctx, cancel := context.WithCancel(ctx)
		a := &ahead{program: make(chan error, 1), laid: make(chan error, 1), ready: ready}
		ended := make(chan struct{})
		a.stop = sync.OnceFunc(func() {
			cancel()
			a.ready.Close()
			<-ended
		})
		r.begun[later.Name] = a
		go func() {
			defer close(ended)
			defer stdin.Close()
			j, err := r.lay(ctx, later)
			defer r.tidying.Go(j.done)
			a.at = j.at
			a.laid <- err
			if err == nil {
				j.program.stdin, j.program.stdout, j.program.stderr = stdin, &a.stdout, &a.stderr
				a.program <- j.program.run(ctx)
			}
		}()
	}
}

// finish lets a step that has begun go on, now that its inputs are there, and waits for
// its end. It returns where its places were.
func (r *run) finish(a *ahead, s pipeline.Step, out output) (pipeline.Places, error) {
	defer a.stop()
	a.stdout.open(out.stdout)
	a.stderr.open(out.stderr)
	if err := <-a.laid; err != nil {
		return a.at, err
	}
	if err := r.link(s, a.at); err != nil {
		return a.at, err
	}
	a.ready.Close()
	return a.at, <-a.program
}

// latch holds back what is written to it until it is opened.
type latch struct {
	mu   sync.Mutex
	to   io.Writer
	held []byte
}

// Write implements io.Writer.
func (l *latch) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to != nil {
		return l.to.Write(b)
	}
	l.held = append(l.held, b[:min(len(b), max(0, keptBytes-len(l.held)))]...)
	return len(b), nil
}

// open passes on what was held back, and all that comes.
func (l *latch) open(to io.Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to = to
	_, _ = to.Write(l.held) // a writer that fails must not stop the build
	l.held = nil
}
