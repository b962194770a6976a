package pipeline

import (
	"context"
	"sync"
)

// task is a job in the queue or on a worker.
type task struct {
	result *Result
	tries  int
}

// queue distributes tasks to the workers that are not lost.
type queue struct {
	mu      sync.Mutex
	changed *sync.Cond
	waiting []*task
	running int
	lost    []bool // by worker
}

func newQueue(ctx context.Context, workers int) *queue {
	q := &queue{lost: make([]bool, workers)}
	q.changed = sync.NewCond(&q.mu)
	context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.changed.Broadcast()
	})
	return q
}

// nextTask waits for the next task of a worker. It returns nil if there will be none: all are
// done, the worker is lost, or ctx has ended. While others run, a task may still come back.
func (q *queue) nextTask(ctx context.Context, worker int) *task {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		switch {
		case ctx.Err() != nil:
			q.failWaiting(context.Cause(ctx))
			return nil
		case q.lost[worker]:
			return nil
		case len(q.waiting) > 0:
			t := q.waiting[0]
			q.waiting = q.waiting[1:]
			q.running++
			t.tries++
			return t
		case q.running == 0:
			return nil
		}
		q.changed.Wait()
	}
}

// failWaiting ends all tasks that wait. The caller holds the lock.
func (q *queue) failWaiting(why error) {
	for _, t := range q.waiting {
		t.result.Err = why
	}
	q.waiting = nil
}

// taskDone notes that a task has its result.
func (q *queue) taskDone() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running--
	q.changed.Broadcast()
}

// removeWorker removes a worker. It puts the worker's task first in line if there is another
// worker and the task was not put back before. Otherwise the task still counts as running.
func (q *queue) removeWorker(t *task, worker int) (again bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lost[worker] = true
	left := false
	for _, lost := range q.lost {
		left = left || !lost
	}
	if again = left && t.tries == 1; again {
		q.waiting = append([]*task{t}, q.waiting...)
		q.running--
	}
	if !left {
		q.failWaiting(errNoWorker)
	}
	q.changed.Broadcast()
	return again
}
