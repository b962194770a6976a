package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// exitGrace is how long a container that has ended may take to come up after
	// all: container clients restart it.
	exitGrace = 5 * time.Second
	// answerGrace is how long a container may run without an answer of its engine.
	answerGrace = 90 * time.Second
	// lookEvery is the time between two looks at a container that starts.
	lookEvery = 500 * time.Millisecond
	// shownLines is how many of the container's last lines an error shows.
	shownLines = 8
)

// containerState is the state of a container as its client reports it.
type containerState struct {
	missing    bool
	Status     string
	Running    bool
	Restarting bool
	OOMKilled  bool
	ExitCode   int
	Error      string
	FinishedAt string
	restarts   int
}

// inspect asks the container client for the container's state.
func (c Container) inspect(ctx context.Context) (containerState, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, clientSteps, fmt.Errorf("%s did not answer within %s", c.Client, clientSteps))
	defer cancel()
	out, err := c.output(ctx, "container", "inspect", c.Name)
	var said *clientError
	if errors.As(err, &said) && strings.Contains(strings.ToLower(said.said), "no such container") {
		return containerState{missing: true}, nil
	}
	if err != nil {
		return containerState{}, c.failed("cannot be inspected: "+err.Error(), nil)
	}
	var all []struct {
		State        containerState
		RestartCount int
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != 1 {
		return containerState{}, fmt.Errorf("%s container inspect %s: not the JSON of one container", c.Client, c.Name)
	}
	state := all[0].State
	state.restarts = all[0].RestartCount
	state.Running = state.Running && !state.Restarting // docker says that a restarting one runs
	return state, nil
}

// waiting decides how long dsbuild waits for a started container whose engine does not answer
// yet.
type waiting struct {
	began  time.Time
	first  containerState
	exited time.Time // when it was first seen to have ended; zero if it has not
	ending containerState
}

// judge returns why it is useless to wait longer, or "".
func (w *waiting) judge(s containerState, now time.Time) string {
	ended := !s.Running || s.restarts > w.first.restarts || s.FinishedAt != w.first.FinishedAt
	if ended && w.exited.IsZero() {
		w.exited = now
	}
	if !s.Running {
		w.ending = s
	}
	switch {
	case s.missing && now.Sub(w.exited) >= exitGrace: // docker reserves a name before it shows the container
		return "was removed while it started"
	case !w.exited.IsZero() && now.Sub(w.exited) >= exitGrace && (!s.Running || s.restarts > w.first.restarts+1):
		return w.ending.describe(s.restarts)
	case s.Status == "paused":
		return "is paused"
	case now.Sub(w.began) >= answerGrace:
		return fmt.Sprintf("runs, but its engine has not answered for %s", answerGrace)
	}
	return ""
}

// describe returns how the container ended.
func (s containerState) describe(restarts int) string {
	text := fmt.Sprintf("does not start: it ended with exit code %d", s.ExitCode)
	if s.OOMKilled {
		text += ", killed for lack of memory"
	}
	if restarts > 0 {
		text += fmt.Sprintf(", and again after each of %d restarts", restarts)
	}
	if s.Error != "" {
		text += ": " + s.Error
	}
	return text
}

// await waits until the engine in the container answers.
func (c Container) await(ctx context.Context, log func(string)) error {
	log("waiting for the engine in " + c.Name)
	first, err := c.inspect(ctx)
	if err != nil {
		return err
	}
	w := waiting{began: time.Now(), first: first}
	for {
		state, err := c.inspect(ctx)
		if err != nil {
			return err
		}
		why := ""
		if state.Running {
			var answers bool
			if answers, why = c.answers(ctx); answers {
				return nil
			}
		}
		if why == "" {
			why = w.judge(state, time.Now())
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if why != "" {
			return c.failed(why, c.lastLines(ctx))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lookEvery):
		}
	}
}

// answers connects to the engine as the Dagger client does, and disconnects. The text is the
// reason why no later attempt can succeed.
func (c Container) answers(ctx context.Context) (bool, string) {
	ctx, cancel := context.WithTimeout(ctx, clientSteps)
	defer cancel()
	out, err := c.combined(ctx, "exec", "-i", c.Name, "buildctl", "dial-stdio")
	if err != nil && strings.Contains(out, "executable file") && strings.Contains(out, "not found") {
		return false, "has no program buildctl: its image is not a Dagger engine's"
	}
	return err == nil, ""
}

// Lost returns an error that the engine's container has ended, if that is why the Dagger client
// failed with err; else it returns err.
func (e Engine) Lost(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if gone := e.Gone(ctx); gone != nil {
		return gone
	}
	return err
}

// Gone returns an error if the engine's container no longer runs. It is nil for an engine that
// runs elsewhere.
func (e Engine) Gone(ctx context.Context) error {
	c, ok := e.Container()
	if !ok {
		return nil
	}
	state, err := c.inspect(ctx)
	switch {
	case err != nil:
		return err
	case state.missing:
		return c.failed("was removed meanwhile", nil)
	case !state.Running:
		return c.failed("ended meanwhile, with exit code "+fmt.Sprint(state.ExitCode), c.lastLines(ctx))
	}
	return nil
}

// lastLines returns the last lines that the container printed.
func (c Container) lastLines(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, clientSteps)
	defer cancel()
	out, err := c.combined(ctx, "logs", "--tail", fmt.Sprint(shownLines), c.Name)
	if err != nil || strings.TrimSpace(out) == "" {
		return nil
	}
	return slices.Compact(strings.Split(strings.TrimSpace(out), "\n")) // each restart says the same
}
