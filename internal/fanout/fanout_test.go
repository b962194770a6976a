package fanout_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fanout"
)

// noLeak fails the test when it ends with more goroutines than it began with.
func noLeak(t *testing.T) {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		deadline := time.Now().Add(time.Minute)
		for runtime.NumGoroutine() > before {
			if time.Now().After(deadline) {
				buf := make([]byte, 1<<16)
				t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
}

func numbers(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

func TestResultsInOrderWithEveryError(t *testing.T) {
	noLeak(t)
	var at, most atomic.Int32
	res := fanout.Run(t.Context(), numbers(500), fanout.Options{Forks: 7}, func(_ context.Context, i int) (string, error) {
		n := at.Add(1)
		defer at.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(time.Duration(i%3) * time.Millisecond)
		if i%5 == 0 {
			return "", fmt.Errorf("item %d", i)
		}
		return fmt.Sprint(i), nil
	})
	if len(res) != 500 {
		t.Fatalf("%d results", len(res))
	}
	for i, r := range res {
		if !r.Started {
			t.Fatalf("item %d not started", i)
		}
		if i%5 == 0 {
			if r.Err == nil || r.Err.Error() != fmt.Sprintf("item %d", i) {
				t.Errorf("item %d: error %v", i, r.Err)
			}
		} else if r.Err != nil || r.Value != fmt.Sprint(i) {
			t.Errorf("item %d: %q, %v", i, r.Value, r.Err)
		}
	}
	if got := most.Load(); got != 7 {
		t.Errorf("%d ran at once, want 7", got)
	}
}

// A slow item must not hold up the others: with batches and a barrier the
// second half would wait for it.
func TestNoBarrier(t *testing.T) {
	noLeak(t)
	others := make(chan struct{})
	var done atomic.Int32
	res := fanout.Run(t.Context(), numbers(20), fanout.Options{Forks: 2}, func(_ context.Context, i int) (int, error) {
		if i == 0 {
			select {
			case <-others:
				return 0, nil
			case <-time.After(time.Minute):
				return 0, errors.New("the others waited for the slowest")
			}
		}
		if done.Add(1) == 19 {
			close(others)
		}
		return i, nil
	})
	if res[0].Err != nil {
		t.Fatal(res[0].Err)
	}
}

func TestStopWhen(t *testing.T) {
	noLeak(t)
	var asked []int
	boom := errors.New("boom")
	res := fanout.Run(t.Context(), numbers(100), fanout.Options{
		Forks:    1,
		StopWhen: func(failed int) bool { asked = append(asked, failed); return failed > 2 },
	}, func(_ context.Context, i int) (int, error) {
		if i%2 == 1 {
			return 0, boom
		}
		return i, nil
	})
	// Items 1, 3 and 5 fail. With one fork, item 6 may at most have started.
	for i, r := range res {
		switch {
		case i <= 5 && !r.Started:
			t.Errorf("item %d not started", i)
		case i > 6 && (r.Started || !errors.Is(r.Err, fanout.ErrStopped)):
			t.Errorf("item %d: started %v, error %v", i, r.Started, r.Err)
		}
	}
	if fmt.Sprint(asked) != "[1 2 3]" {
		t.Errorf("asked with %v", asked)
	}
}

func TestCancel(t *testing.T) {
	noLeak(t)
	why := errors.New("interrupted by the user")
	ctx, cancel := context.WithCancelCause(t.Context())
	res := fanout.Run(ctx, numbers(50), fanout.Options{Forks: 4}, func(ctx context.Context, i int) (int, error) {
		if i == 3 {
			cancel(why)
		}
		<-ctx.Done()
		return i, ctx.Err()
	})
	started := 0
	for i, r := range res {
		if r.Started {
			started++
			if !errors.Is(r.Err, context.Canceled) {
				t.Errorf("item %d: %v", i, r.Err)
			}
			continue
		}
		if !errors.Is(r.Err, why) {
			t.Errorf("item %d: not started because %v", i, r.Err)
		}
	}
	if started != 4 {
		t.Errorf("%d started, want 4", started)
	}
}

func TestCancelledBefore(t *testing.T) {
	noLeak(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		for i, r := range fanout.Run(ctx, numbers(3), fanout.Options{}, func(context.Context, int) (int, error) { return 1, nil }) {
			if r.Started || !errors.Is(r.Err, context.Canceled) {
				t.Fatalf("item %d: %+v", i, r)
			}
		}
	}
}

func TestPanicIsThatItemsError(t *testing.T) {
	noLeak(t)
	cause := errors.New("cause")
	res := fanout.Run(t.Context(), numbers(3), fanout.Options{Forks: 1}, func(_ context.Context, i int) (int, error) {
		if i == 1 {
			panic(cause)
		}
		return i, nil
	})
	var p *fanout.PanicError
	if !errors.As(res[1].Err, &p) || !errors.Is(res[1].Err, cause) || len(p.Stack) == 0 {
		t.Errorf("got %v", res[1].Err)
	}
	if res[0].Err != nil || res[2].Err != nil || res[2].Value != 2 {
		t.Errorf("the others: %+v", res)
	}
}

func TestGoexitIsNotASuccess(t *testing.T) {
	noLeak(t)
	res := fanout.Run(t.Context(), numbers(2), fanout.Options{Forks: 1}, func(_ context.Context, i int) (int, error) {
		if i == 0 {
			runtime.Goexit()
		}
		return i, nil
	})
	if res[0].Err == nil || res[1].Err != nil {
		t.Errorf("got %v and %v", res[0].Err, res[1].Err)
	}
}

func TestSecondsAndEmpty(t *testing.T) {
	noLeak(t)
	res := fanout.Run(t.Context(), numbers(1), fanout.Options{}, func(context.Context, int) (int, error) {
		time.Sleep(20 * time.Millisecond)
		return 0, nil
	})
	if res[0].Seconds < 0.02 {
		t.Errorf("%v seconds", res[0].Seconds)
	}
	if got := fanout.Run(t.Context(), nil, fanout.Options{}, func(context.Context, int) (int, error) { return 0, nil }); len(got) != 0 {
		t.Errorf("%v", got)
	}
}
