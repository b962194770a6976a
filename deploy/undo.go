package deploy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// hurriedLimit is how long dsbuild tries to reach a lost node again after the user has
// interrupted the run.
const hurriedLimit = 15 * time.Second

// undoNode undoes the change that was begun on a node, even after ctx has ended, and finds out
// the version there.
func (d *Deployment) undoNode(ctx context.Context, u *nodeRun) {
	if u.session == nil {
		return
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	is, err := u.session.undo(limited)
	u.session.end()
	u.session = nil
	if err != nil && u.step == "put" {
		return // nothing was changed yet; the next run uses the files that have arrived
	}
	if err != nil && !errors.As(err, new(*refusal)) {
		if ctx.Err() != nil {
			var hurry context.CancelFunc
			limited, hurry = context.WithTimeout(limited, hurriedLimit)
			defer hurry()
		}
		if seen, again := d.inspectAgain(limited, u, err); again == nil {
			is, err = seen, nil
		}
	}
	d.describeUndo(u, is, err)
}

// inspectAgain finds out the version on a node after its agent was lost. It starts another agent,
// over a new connection if needed. That agent waits for the end of the first one and, if the
// first one was killed, repairs the environment.
func (d *Deployment) inspectAgain(ctx context.Context, u *nodeRun, lost error) (undoReply, error) {
	if errors.Is(lost, remote.ErrLost) {
		if err := d.reconnect(ctx, u); err != nil {
			return undoReply{}, err
		}
	}
	c, b, err := startSession(ctx, u, sessionRequest{Run: d.run, Label: label(u.host.Name), By: d.opt.By, Look: true})
	if err != nil {
		return undoReply{}, err
	}
	c.end()
	is := undoReply{Finished: true, Recorded: b.Run == d.run}
	if b.Now != nil {
		is.Before = &Version{b.Now.Version, b.Now.SHA256}
	}
	return is, nil
}

// describeUndo adds the result of the undo to the node's error.
func (d *Deployment) describeUndo(u *nodeRun, is undoReply, err error) {
	why, after := hint.Of(u.err), errors.New("put back: no DeepSpeed, as before")
	switch {
	case err != nil:
		after, u.after, u.unseen = unseen(u, err), nil, true
		why = strings.TrimPrefix(why+"; deploy again once the node answers", "; ")
	case is.Recorded:
		u.changed = true
		after = stays(u.after, is.Finished)
	case is.Before == nil:
		u.changed, u.after = false, nil
	default:
		u.changed, u.after = false, is.Before
		after = cause.Errorf("put back: DeepSpeed %s, as before", cause.Own(is.Before.Version))
	}
	u.log.line("", after.Error())
	u.err = withHint(fmt.Errorf("%w; %w", u.err, after), why)
}

// unseen describes the state of a node whose undo failed or gave no answer.
func unseen(u *nodeRun, err error) error {
	var refused *refusal
	switch {
	case errors.As(err, &refused):
		return fmt.Errorf("its environment was not put back: %w; the next deploy does it first", err)
	case u.step == "record":
		return errors.New("it may run either version; deploy again")
	case errors.Is(err, remote.ErrLost):
		return errors.New("the node puts its environment back by itself, unseen")
	}
	if u.err.Error() == err.Error() {
		return errors.New("the state of its environment is unknown; the next deploy repairs it")
	}
	return fmt.Errorf("the state of its environment is unknown (%w); the next deploy repairs it", err)
}

// stays describes a change that was already final when a later part of recording it failed.
func stays(after *Version, finished bool) error {
	what := "no DeepSpeed"
	if after != nil {
		what = "DeepSpeed " + after.Version
	}
	if finished {
		return errors.New(what + " is installed and recorded")
	}
	return errors.New(what + " is installed and stays; the next run finishes recording it")
}
