package deploy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/agent"
	"github.com/dsbuild/dsbuild/deploy/changes"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// hurriedLimit is how long dsbuild tries to reach a lost node again after the user has
// interrupted the run.
const hurriedLimit = 15 * time.Second

// undo takes back the change that was begun on a node, even after ctx has ended, and finds out
// the version there.
func (u *nodeRun) undo(ctx context.Context) {
	if u.session == nil {
		return
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	var is undoReply
	err := u.session.Ask(limited, agent.Order{"do": "undo"}, &is)
	u.endSession()
	if err != nil && u.Step == "put" {
		return // nothing was changed yet; the next run uses the files that have arrived
	}
	if err != nil && !errors.As(err, new(*agent.Failure)) {
		if ctx.Err() != nil {
			var hurry context.CancelFunc
			limited, hurry = context.WithTimeout(limited, hurriedLimit)
			defer hurry()
		}
		if seen, inspectErr := inspectAgain(limited, u, err); inspectErr == nil {
			is, err = seen, nil
		}
	}
	describeUndo(u, is, err)
}

// inspectAgain finds out the version on a node after its agent was lost. It starts another agent,
// over a new connection if needed. That agent waits for the end of the first one and, if the
// first one was killed, repairs the environment.
func inspectAgain(ctx context.Context, u *nodeRun, lost error) (undoReply, error) {
	if errors.Is(lost, remote.ErrLost) {
		if err := u.restart(ctx); err != nil {
			return undoReply{}, err
		}
	}
	s, b, err := u.startSession(ctx, sessionRequest{Files: []expectedFile{}, StatusOnly: true, LockS: changes.LockWait(false)})
	if err != nil {
		return undoReply{}, err
	}
	s.End()
	is := undoReply{Finished: true, Recorded: b.Run == u.run.fleet.Run}
	if b.Now != nil {
		is.Before = &report.Version{Version: b.Now.Version, SHA256: b.Now.SHA256}
	}
	return is, nil
}

// describeUndo adds the result of the undo to the node's error.
func describeUndo(u *nodeRun, is undoReply, err error) {
	why, after := fault.Hint(u.Err), errors.New("put back: no DeepSpeed, as before")
	switch {
	case err != nil:
		after, u.change.after, u.change.unseen = describeUnseen(u, err), nil, true
		why = strings.TrimPrefix(why+"; deploy again once the node answers", "; ")
	case is.Recorded:
		u.change.changed = true
		after = describeFinal(u.change.after, is.Finished)
	case is.Before == nil:
		u.change.changed, u.change.after = false, nil
	default:
		u.change.changed, u.change.after = false, is.Before
		after = cause.Errorf("put back: DeepSpeed %s, as before", cause.Own(is.Before.Version))
	}
	u.Log.Line("", after.Error())
	u.Err = fault.AddHint(fmt.Errorf("%w; %w", u.Err, after), why)
}

// describeUnseen describes the state of a node whose undo failed or gave no answer.
func describeUnseen(u *nodeRun, err error) error {
	var refused *agent.Failure
	switch {
	case errors.As(err, &refused):
		return fmt.Errorf("its environment was not put back: %w; the next deploy puts it back first", err)
	case u.Step == "record":
		return errors.New("it may run either version; deploy again")
	case errors.Is(err, remote.ErrLost):
		return errors.New("the node puts its environment back by itself; dsbuild could not confirm it")
	}
	if u.Err.Error() == err.Error() {
		return errors.New("the state of its environment is unknown; the next deploy repairs it")
	}
	return fmt.Errorf("the state of its environment is unknown (%w); the next deploy repairs it", err)
}

// describeFinal describes a change that was already final when a later part of recording it failed.
func describeFinal(after *report.Version, finished bool) error {
	if finished {
		return errors.New(after.String() + " is installed and recorded")
	}
	return errors.New(after.String() + " is installed and stays; the next run finishes recording it")
}
