package pipeline

import (
	"context"
	"sync"
)

// task is a job on its way.
type task struct {
	result *Result
	tries  int
}

// queue hands tasks to the yards that are left.
type queue struct {
	mu      sync.Mutex
	changed *sync.Cond
	waiting []*task
	running int
	lost    []bool // by yard
}

func newQueue(ctx context.Context, yards int) *queue {
	q := &queue{lost: make([]bool, yards)}
	q.changed = sync.NewCond(&q.mu)
	context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.changed.Broadcast()
	})
	return q
}

// take waits for the next task of a yard. It is nil when there will be none:
// all are done, the yard is lost, or ctx has ended. While others run there may
// still come one back.
func (q *queue) take(ctx context.Context, yard int) *task {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		switch {
		case ctx.Err() != nil:
			q.giveUp(context.Cause(ctx))
			return nil
		case q.lost[yard]:
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

// giveUp ends all tasks that wait. The caller holds the lock.
func (q *queue) giveUp(why error) {
	for _, t := range q.waiting {
		t.result.Err = why
	}
	q.waiting = nil
}

// done says that a task has its result.
func (q *queue) done() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running--
	q.changed.Broadcast()
}

// drop leaves out a yard, and puts the task it was at first in line where there
// is another yard and it is the first time. If not, it is still running.
func (q *queue) drop(t *task, yard int) (again bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lost[yard] = true
	left := false
	for _, lost := range q.lost {
		left = left || !lost
	}
	if again = left && t.tries == 1; again {
		q.waiting = append([]*task{t}, q.waiting...)
		q.running--
	}
	if !left {
		q.giveUp(errNoYard)
	}
	q.changed.Broadcast()
	return again
}
