package deploy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// hurriedLimit is how long a node that is lost is looked for once the user wants
// the run to end.
const hurriedLimit = 15 * time.Second

// putBack undoes what was begun on a node, also after ctx has ended, and finds out
// what it has now.
func (d *Deployment) putBack(ctx context.Context, u *unit) {
	if u.change == nil {
		return
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	is, err := u.change.undo(limited)
	u.change.end()
	u.change = nil
	if err != nil && u.step == "put" {
		return // nothing was changed yet; what has arrived of the files waits for the next run
	}
	if err != nil && !errors.As(err, new(*refusal)) {
		if ctx.Err() != nil {
			var hurry context.CancelFunc
			limited, hurry = context.WithTimeout(limited, hurriedLimit)
			defer hurry()
		}
		if seen, again := d.lookAgain(limited, u, err); again == nil {
			is, err = seen, nil
		}
	}
	d.tellBack(u, is, err)
}

// lookAgain asks a node whose agent is gone what it has: another agent, over
// another connection if need be, waits for the end of the first one and, if that
// was killed, puts right what it has left.
func (d *Deployment) lookAgain(ctx context.Context, u *unit, lost error) (undone, error) {
	if errors.Is(lost, remote.ErrLost) {
		if err := d.reconnect(ctx, u); err != nil {
			return undone{}, err
		}
	}
	c, b, err := startChange(ctx, u, changeRequest{Run: d.run, Label: label(u.host.Name), By: d.opt.By, Look: true})
	if err != nil {
		return undone{}, err
	}
	c.end()
	is := undone{Finished: true, Recorded: b.Run == d.run}
	if b.Now != nil {
		is.Before = &Version{b.Now.Version, b.Now.SHA256}
	}
	return is, nil
}

// tellBack adds to the error of a node what became of its environment.
func (d *Deployment) tellBack(u *unit, is undone, err error) {
	why, after := hint.Of(u.err), ""
	switch {
	case err != nil:
		after, u.after, u.unseen = unseen(u, err), nil, true
		why = strings.TrimPrefix(why+"; deploy again once the node answers", "; ")
	case is.Recorded:
		u.changed = true
		after = stays(u.after, is.Finished)
	case is.Before == nil:
		u.changed, u.after = false, nil
		after = "put back: no DeepSpeed, as before"
	default:
		u.changed, u.after = false, is.Before
		after = fmt.Sprintf("put back: DeepSpeed %s, as before", is.Before.Version)
	}
	u.log.line("", after)
	u.aftermath = "; " + after
	u.err = withHint(fmt.Errorf("%w%s", u.err, u.aftermath), why)
}

// unseen says what is known of a node that was told to undo, and did not.
func unseen(u *unit, err error) string {
	var refused *refusal
	switch {
	case errors.As(err, &refused):
		return fmt.Sprintf("its environment was not put back: %v; the next deploy does it first", err)
	case u.step == "record":
		return "it may run either version; deploy again"
	case errors.Is(err, remote.ErrLost):
		return "the node puts its environment back by itself, unseen"
	}
	why := " (" + err.Error() + ")"
	if u.err.Error() == err.Error() {
		why = ""
	}
	return "the state of its environment is unknown" + why + "; the next deploy repairs it"
}

// stays says what became of a change that was final when a later part of
// recording it failed.
func stays(after *Version, finished bool) string {
	what := "no DeepSpeed"
	if after != nil {
		what = "DeepSpeed " + after.Version
	}
	if finished {
		return what + " is installed and recorded"
	}
	return what + " is installed and stays; the next run finishes recording it"
}
