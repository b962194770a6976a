package change

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// UndoReply is the part of the reply to the request undo that all agents share. Commands embed it in their agent's
// reply.
type UndoReply struct {
	Recorded bool `json:"recorded"` // the change was already final and stays
	Finished bool `json:"finished"` // the next run has nothing left to repair
}

func (e *UndoReply) undoReply() *UndoReply { return e }

// LastAnswer is the reply of an agent to the request undo: a pointer to a struct that embeds UndoReply.
type LastAnswer interface{ undoReply() *UndoReply }

// hurriedLimit is how long dsbuild tries to reach a lost node again after the user has
// interrupted the run.
const hurriedLimit = 15 * time.Second

// Undo undoes the change that was begun on a node, even after ctx has ended, and determines the node's state. The
// agent's reply is decoded into is. If the agent is lost or cannot undo, a second one, started with again, waits for it
// to end, repairs the node and replies into seen. begun is false if no change had begun. The error is the reason why
// the state is unknown.
func (r *Run) Undo(
	ctx context.Context, n *fleet.Node, again node.Script, is LastAnswer, seen FirstAnswer,
) (begun bool, err error) {
	if !n.HoldsLock() {
		return false, nil
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), UndoLimit)
	defer cancel()
	err = Call(limited, n, agent.Request{"do": "undo"}, is)
	n.Release()
	switch {
	case err == nil:
		return true, nil
	case n.Step == "put":
		return false, nil // nothing was changed yet; the next run uses the files that have arrived
	case ctx.Err() != nil:
		var hurry context.CancelFunc
		limited, hurry = context.WithTimeout(limited, hurriedLimit)
		defer hurry()
	}
	// The agent may have ended before the connection was lost.
	if errors.Is(err, remote.ErrLost) || errors.Is(n.Err, remote.ErrLost) {
		if n.Reconnect(limited) != nil {
			return true, err
		}
	}
	s, lookErr := r.start(limited, n, again, nil, false, true, seen)
	if lookErr != nil {
		return true, err
	}
	s.End()
	*is.undoReply() = UndoReply{Recorded: seen.beginReply().Run == r.Fleet.Run, Finished: true}
	return true, nil
}

// AddOutcome adds the outcome of a change to the error of its node. err is the reason why the outcome is unknown.
func AddOutcome(n *fleet.Node, outcome, err error) {
	try := fault.Hint(n.Err)
	if err != nil {
		n.StateUnknown, try = true, strings.TrimPrefix(try+"; rerun once the node is reachable", "; ")
	}
	n.Log.Line("", outcome.Error())
	n.Err = fault.AddHint(fmt.Errorf("%w; %w", n.Err, outcome), try)
}
