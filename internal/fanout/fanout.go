// Package fanout runs a function over many items with limited concurrency.
//
// There are no batches: as soon as one item ends the next begins, so the slowest of a thousand
// nodes delays only the end.
package fanout

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// DefaultForks is the default of Options.Forks.
const DefaultForks = 32

// ErrStopped is the error of an item that was not started because Options.StopWhen returned true.
var ErrStopped = errors.New("skipped: too many failed nodes")

// errGoexit is the error of an item whose do called runtime.Goexit, which is neither a panic nor a
// return.
var errGoexit = errors.New("ended by runtime.Goexit")

// Options set the width of the window and the condition to stop.
type Options struct {
	// Forks is how many items run in parallel. Zero or less means DefaultForks.
	Forks int
	// StopWhen, if set, is called after each failure with the number of failures so far, and never
	// concurrently. Once it returns true, Run starts no more items. Running items continue.
	StopWhen func(failed int) bool
}

// Result is the outcome of one item.
type Result[O any] struct {
	// Value is the value that do returned, even with an error.
	Value O
	// Err is do's error, a *PanicError, or the reason why the item was not started.
	Err error
	// Started is false if do was never called for this item.
	Started bool
	// Seconds is how long do took.
	Seconds float64
}

// PanicError is a panic in do. Run recovers it so that one item cannot end the others.
type PanicError struct {
	// Value is the argument of panic.
	Value any
	// Stack is the goroutine's stack at the panic.
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the argument of panic if it was an error, else nil.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Run calls do once for every item, at most opt.Forks at a time, and returns the results in the order
// of items. It returns when all started items and their goroutines have ended.
//
// When ctx ends, Run starts no more items, and do must return by itself. An item that was not started
// has Started false and Err set to the cause of ctx's end, or to ErrStopped.
func Run[I, O any](ctx context.Context, items []I, opt Options, do func(context.Context, I) (O, error)) []Result[O] {
	forks := opt.Forks
	if forks <= 0 {
		forks = DefaultForks
	}
	w := &window[O]{
		results:  make([]Result[O], len(items)),
		slots:    make(chan struct{}, min(forks, max(len(items), 1))),
		stopped:  make(chan struct{}),
		stopWhen: opt.StopWhen,
	}
	for i := range items {
		if err := w.enter(ctx); err != nil {
			for ; i < len(items); i++ {
				w.results[i].Err = err
			}
			break
		}
		w.running.Go(func() {
			defer func() { <-w.slots }()
			run(ctx, items[i], &w.results[i], do)
			w.ended(w.results[i].Err)
		})
	}
	w.running.Wait()
	return w.results
}

// window is the state that the items of one Run share.
type window[O any] struct {
	results  []Result[O]
	slots    chan struct{}
	running  sync.WaitGroup
	stopWhen func(int) bool

	mu      sync.Mutex
	failed  int
	stop    sync.Once
	stopped chan struct{}
}

// enter waits for a free slot. An error is the reason to start no more items.
func (w *window[O]) enter(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-w.stopped:
	case w.slots <- struct{}{}:
	}
	// select picks at random among the ready cases. These checks make an end always win.
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case <-w.stopped:
		return ErrStopped
	default:
		return nil
	}
}

// ended counts failures, and closes the window when StopWhen returns true.
func (w *window[O]) ended(err error) {
	if err == nil || w.stopWhen == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed++
	if w.stopWhen(w.failed) {
		w.stop.Do(func() { close(w.stopped) })
	}
}

// run calls do for one item and sets its result, even if do panics or calls Goexit.
func run[I, O any](ctx context.Context, item I, r *Result[O], do func(context.Context, I) (O, error)) {
	r.Started = true
	returned := false
	begin := time.Now()
	defer func() {
		r.Seconds = time.Since(begin).Seconds()
		if v := recover(); v != nil {
			r.Err = &PanicError{Value: v, Stack: debug.Stack()}
		} else if !returned {
			r.Err = errGoexit
		}
	}()
	r.Value, r.Err = do(ctx, item)
	returned = true
}
