//go:build linux

package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// machine is this machine as a node.
type machine struct {
	ended chan struct{} // closed when the program has ended
	stall chan struct{} // closed when nothing more reaches the program, though its input stays open
}

func newMachine() machine { return machine{make(chan struct{}), make(chan struct{})} }

func (m machine) Run(ctx context.Context, cmd remote.Command) error {
	c := exec.CommandContext(ctx, cmd.Argv[0], cmd.Argv[1:]...)
	c.Stdout, c.Stderr, c.WaitDelay = cmd.Stdout, cmd.Stderr, 10*time.Second
	in, err := c.StdinPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	go func() {
		defer in.Close()
		block := make([]byte, 1<<16)
		for {
			n, err := cmd.Stdin.Read(block)
			select {
			case <-m.stall:
				<-m.ended
				return
			default:
			}
			if _, werr := in.Write(block[:n]); err != nil || werr != nil {
				return
			}
		}
	}()
	err = c.Wait()
	close(m.ended)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return &remote.ExitError{Code: exit.ExitCode()}
	}
	return err
}

// verbs is an agent with the verbs of a test.
const verbs = `
import os
import signal
import sys
import time

from dsbuild_node.agent import Orders, answer, send, serve
from dsbuild_node.controller import REQUEST


def leave(order):
    sys.stderr.write("it has had enough\n")
    sys.stderr.flush()
    os._exit(order["status"])


def fail(order):
    raise ValueError(order["why"])


def describe(error):
    if isinstance(error, ValueError):
        return {"failed": str(error), "advice": "a-code", "detail": "port 7", "busy": True}


def nap(order):
    time.sleep(order["seconds"])
    return order["number"]


def stay(order):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1)


DO = {
    "add": lambda order: order["a"] + order["b"],
    "tell": lambda order: [send(m) for m in order["messages"]] and None,
    "print": lambda order: os.write(1, b"x" * order["bytes"]) and None,
    "leave": leave,
    "fail": fail,
    "nap": nap,
    "stay": stay,
}


def main():
    answer(0, lambda: {"started": REQUEST["name"], "pid": os.getpid()}, describe)
    serve(Orders().take, DO, describe)
`

type started struct {
	Started string `json:"started"`
	PID     int    `json:"pid"`
}

// start starts an agent of verbs on a machine, and ends it with the test.
func start(t *testing.T, m machine, opt agent.Options) *agent.Session {
	t.Helper()
	opt.Script = node.Script{Python: "python3", Program: node.NewProgramOf(verbs), Request: map[string]string{"name": "n1"}}
	var got started
	s, err := agent.Start(t.Context(), m, opt, &got)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.End)
	if got.Started != "n1" || got.PID == 0 {
		t.Errorf("%+v", got)
	}
	return s
}

// ended waits until an agent has ended, and returns why.
func ended(t *testing.T, s *agent.Session) string {
	t.Helper()
	for end := time.Now().Add(time.Minute); s.Err() == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it still runs")
		}
	}
	return s.Err().Error()
}

// Each order gets its own answer.
func TestAsk(t *testing.T) {
	t.Parallel()
	var asked []string
	s := start(t, newMachine(), agent.Options{Asked: func(order []byte) { asked = append(asked, string(order)) }})
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			var sum int
			if err := s.Call(t.Context(), agent.Request{"do": "add", "a": i, "b": 100}, &sum); err != nil || sum != i+100 {
				t.Errorf("%d: %d, %v", i, sum, err)
			}
		})
	}
	all.Wait()
	var failure *agent.Failure
	err := s.Call(t.Context(), agent.Request{"do": "fail", "why": "no\nroom"}, nil)
	if !errors.As(err, &failure) || !failure.Busy || failure.Advice != "a-code" || err.Error() != "node reported: no room (port 7)" {
		t.Errorf("%#v", err)
	}
	s.End()
	if len(asked) != 22 || asked[20] != `{"do":"fail","number":21,"why":"no\nroom"}` || asked[21] != `{"do":"end"}` {
		t.Errorf("%q", asked)
	}
	if err := s.Call(t.Context(), agent.Request{"do": "add"}, nil); err == nil {
		t.Error("an agent that has ended answers")
	}
}

// An agent lives while it hears from its controller, also through an order that takes longer than its
// silence; then it ends, though its input stays open.
func TestSilenceEndsTheProgram(t *testing.T) {
	t.Parallel()
	m := newMachine()
	s := start(t, m, agent.Options{HeartbeatTimeout: 4 * time.Second})
	time.Sleep(5 * time.Second)
	if err := s.Call(t.Context(), agent.Request{"do": "nap", "seconds": 5}, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Call(t.Context(), agent.Request{"do": "add", "a": 1, "b": 2}, nil); err != nil {
		t.Fatal(err)
	}
	close(m.stall)
	if why := ended(t, s); why != "agent on the node exited: node reported: Gone (exit status 1)" {
		t.Error(why)
	}
}

// A message that answers no order ends the program; the reason names it.
func TestUnaskedMessages(t *testing.T) {
	t.Parallel()
	const event = `{"event":1}`
	for message, want := range map[string]string{
		`{"to": 7, "ok": 1}`:                "unexpected reply from the agent on the node",
		`{"to": 0, "ok": 1}`:                "unexpected reply from the agent on the node",
		`{"to": "x"}`:                       "unexpected reply from the node",
		`{"to": 1, "ok": 1, "surprise": 1}`: "unexpected reply from the node",
		`{"surprise": 1}`:                   "no such event",
		`[]`:                                "unexpected reply from the node",
	} {
		t.Run(message, func(t *testing.T) {
			t.Parallel()
			var events []string
			s := start(t, newMachine(), agent.Options{Event: func(m json.RawMessage) error {
				if events = append(events, string(m)); string(m) != event {
					return errors.New("no such event")
				}
				return nil
			}})
			order := agent.Request{"do": "tell", "messages": []json.RawMessage{json.RawMessage(event), json.RawMessage(message)}}
			s.Call(t.Context(), order, nil) //nolint:errcheck // the session says why
			if why := ended(t, s); !strings.HasPrefix(why, "agent on the node exited: "+want) {
				t.Error(why)
			}
			if len(events) == 0 || events[0] != event {
				t.Errorf("%q", events)
			}
		})
	}
	t.Run("no events", func(t *testing.T) {
		t.Parallel()
		s := start(t, newMachine(), agent.Options{})
		s.Call(t.Context(), agent.Request{"do": "tell", "messages": []any{map[string]int{"event": 1}}}, nil) //nolint:errcheck // likewise
		if why := ended(t, s); !strings.Contains(why, "unexpected reply from the node") {
			t.Error(why)
		}
	})
	t.Run("too much", func(t *testing.T) {
		t.Parallel()
		s := start(t, newMachine(), agent.Options{})
		s.Call(t.Context(), agent.Request{"do": "print", "bytes": 17 << 20}, nil) //nolint:errcheck // likewise
		if ended(t, s); !errors.Is(s.Err(), remote.ErrFlood) {
			t.Error(s.Err())
		}
	})
}

// An agent that ends by itself is reported with its status and its last words.
func TestEndedProgram(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		0: "agent on the node exited unexpectedly",
		3: "agent on the node exited: node reported: it has had enough (exit status 3)",
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			s := start(t, newMachine(), agent.Options{})
			err := s.Call(t.Context(), agent.Request{"do": "leave", "status": status}, nil)
			if err == nil || err.Error() != want || s.Err() == nil || s.Err().Error() != want {
				t.Errorf("%v, %v", err, s.Err())
			}
		})
	}
	_, err := agent.Start(t.Context(), newMachine(), agent.Options{Script: node.Script{Python: "python3", Program: node.NewProgramOf("def main():\n    raise SystemExit('not here')\n")}}, nil)
	if err == nil || err.Error() != "agent on the node exited: node reported: not here (exit status 1)" {
		t.Error(err)
	}
	_, err = agent.Start(t.Context(), newMachine(), agent.Options{Script: node.Script{Python: "/no/such/python", Program: node.NewProgramOf(verbs)}}, nil)
	if !errors.Is(err, exec.ErrNotFound) && (err == nil || !strings.Contains(err.Error(), "no such file")) {
		t.Error(err)
	}
}

// An agent that is asked to end does so at once; one that does not is abandoned after the grace.
func TestEndWithinTheGrace(t *testing.T) {
	t.Parallel()
	for verb, c := range map[string]struct{ limit, grace time.Duration }{
		"add": {time.Minute, time.Minute}, "stay": {500 * time.Millisecond, time.Second},
	} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			m := newMachine()
			s := start(t, m, agent.Options{EndGrace: c.grace})
			limited, cancel := context.WithTimeoutCause(t.Context(), c.limit, errors.New("too slow"))
			defer cancel()
			err := s.Call(limited, agent.Request{"do": verb, "a": 1, "b": 2}, nil)
			if verb == "stay" && (err == nil || err.Error() != "too slow") || verb == "add" && err != nil {
				t.Error(err)
			}
			begin := time.Now()
			s.End()
			if took := time.Since(begin); (took >= c.grace) != (verb == "stay") {
				t.Errorf("it took %s, and the grace is %s", took, c.grace)
			}
			select {
			case <-m.ended:
			default:
				t.Error("the program still runs")
			}
		})
	}
}

// An order that the controller gives up disturbs no other, and the agent outlives the context that it
// was started with.
func TestGivenUpOrder(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	giveUp := func([]byte) { cancel(io.ErrUnexpectedEOF) }
	s, err := agent.Start(ctx, newMachine(), agent.Options{Asked: giveUp, Script: node.Script{Python: "python3", Program: node.NewProgramOf(verbs), Request: map[string]string{"name": "n1"}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.End()
	if err := s.Call(ctx, agent.Request{"do": "nap", "seconds": 1}, nil); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	var number int
	if err := s.Call(t.Context(), agent.Request{"do": "nap", "seconds": 0}, &number); err != nil || number != 2 {
		t.Errorf("%d, %v", number, err)
	}
}
