// Package agent runs a program on a node for as long as the controller needs it, and keeps the session
// with it. The controller sends orders; the program answers each by its number, and may send events in
// between. Signs of life from the controller keep the program running: a program that hears nothing
// ends by itself, because a broken network does not always end its input.
//
// This package owns the framing and the life line, on both sides (the module agent is the node's). The
// orders belong to the packages that use it.
package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

const (
	// HeartbeatTimeout is how long an agent waits for a heartbeat before it takes the controller for dead.
	HeartbeatTimeout = 120 * time.Second
	// EndGrace is how long an agent may clean up after the controller has asked it to end.
	EndGrace = 10 * time.Second
	// pings is the number of heartbeats within HeartbeatTimeout.
	pings = 6
	// maxDetail bounds the detail of a failure, in bytes.
	maxDetail = 300
)

// Options describe the agent to start.
type Options struct {
	// Script is the program and where it runs. Its Request is an object; Start
	// adds silence_s, and provides More.
	node.Script
	// HeartbeatTimeout overrides the constant HeartbeatTimeout.
	HeartbeatTimeout time.Duration
	// EndGrace is how long End waits, by default the constant EndGrace.
	EndGrace time.Duration
	// Event, if set, receives each message that is not an answer. Its error ends the program.
	Event func(json.RawMessage) error
	// Asked, if set, is called with each order before it is sent, except heartbeats.
	Asked func(order []byte)
}

// Request is an order to an agent. "do" names the verb; Ask adds the number.
type Request map[string]any

// Session is the session with a running agent.
type Session struct {
	orders chan []byte
	ending func()        // closes the agent's input after a last order
	ended  chan struct{} // closed when the program has ended
	err    error         // the result of the program; valid once ended is closed
	stop   context.CancelFunc
	event  func(json.RawMessage) error
	grace  time.Duration // Options.EndGrace

	mu      sync.Mutex
	number  int                // of the next order
	waiting map[int]chan reply // for the answer to each order, by number
}

// Failure is the error of an agent that could not execute an order, in the node's words.
type Failure struct {
	error
	Advice string // the code of a hint
	Busy   bool   // another process is at work there
}

// Unwrap returns the error in the node's words.
func (f *Failure) Unwrap() error { return f.error }

// reply is a message that answers an order.
type reply struct {
	To     int             `json:"to"`
	OK     json.RawMessage `json:"ok"`
	Failed string          `json:"failed"`
	Advice string          `json:"advice"`
	Detail string          `json:"detail"` // the part of the failure that only this node has
	Busy   bool            `json:"busy"`
}

// Start starts an agent, waits for its first answer and decodes it into into. The agent outlives
// ctx, so that the controller can still send orders when ctx has ended; End ends it.
func Start(ctx context.Context, r remote.Runner, opt Options, into any) (*Session, error) {
	silence := cmp.Or(opt.HeartbeatTimeout, HeartbeatTimeout)
	// Add the limit of the life line to a request.
	request, err := node.MergeFields(opt.Request, map[string]any{"silence_s": silence.Seconds()})
	if err != nil {
		return nil, err
	}
	out, in := io.Pipe()
	script := opt.Script
	script.Request, script.More = request, out
	ending := make(chan struct{})
	lasting, stop := context.WithCancel(context.WithoutCancel(ctx))
	s := &Session{
		orders: make(chan []byte), ending: sync.OnceFunc(func() { close(ending) }), ended: make(chan struct{}),
		stop: stop, event: opt.Event, grace: cmp.Or(opt.EndGrace, EndGrace), waiting: map[int]chan reply{},
	}
	_, first := s.expect()
	go func() {
		s.err = script.Run(lasting, r, s.receive)
		out.CloseWithError(io.ErrClosedPipe) // a pending write must not wait for a reader
		close(s.ended)
	}()
	go s.write(in, ending, silence/pings, opt.Asked)
	if err := s.await(ctx, first, into); err != nil {
		s.End()
		return nil, err
	}
	return s, nil
}

// write writes orders and heartbeats to the agent's input.
func (s *Session) write(in *io.PipeWriter, ending <-chan struct{}, every time.Duration, asked func([]byte)) {
	defer in.Close() //nolint:errcheck // never fails
	send := func(line []byte) {
		if asked != nil {
			asked(line)
		}
		in.Write(append(line, '\n')) //nolint:errcheck // fails only if the agent has ended, and await sees that
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case line := <-s.orders:
			send(line)
		case <-tick.C:
			io.WriteString(in, `{"do": "ping"}`+"\n") //nolint:errcheck // as in send
		case <-ending:
			send([]byte(`{"do":"end"}`))
			return
		case <-s.ended:
			return
		}
	}
}

// receive handles a message of the agent.
func (s *Session) receive(m json.RawMessage) error {
	var is struct {
		To *json.RawMessage `json:"to"`
	}
	if json.Unmarshal(m, &is) == nil && is.To == nil && s.event != nil {
		return s.event(m)
	}
	var got reply
	if err := node.Decode(m, &got); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting, ok := s.waiting[got.To]
	if !ok {
		return errors.New("unexpected reply from the agent on the node")
	}
	delete(s.waiting, got.To)
	waiting <- got
	return nil
}

// expect returns the number of the next order and the channel for its answer. Number 0 is the
// start of the agent.
func (s *Session) expect() (number int, waiting <-chan reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	number = s.number
	s.number++
	one := make(chan reply, 1)
	s.waiting[number] = one
	return number, one
}

// Call sends an order, waits for the answer and decodes it into into, unless into is nil. If ctx
// ends first, the agent may still execute the order. A *Failure says that it could not.
func (s *Session) Call(ctx context.Context, order Request, into any) error {
	number, waiting := s.expect()
	numbered := maps.Clone(order)
	numbered["number"] = number
	line, err := json.Marshal(numbered)
	if err != nil {
		return err
	}
	select {
	case s.orders <- line:
		return s.await(ctx, waiting, into)
	case <-s.ended:
		return s.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Session) await(ctx context.Context, waiting <-chan reply, into any) error {
	select {
	case r := <-waiting:
		return r.decode(into)
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.ended:
	}
	select {
	case r := <-waiting: // the agent's last message
		return r.decode(into)
	default:
		return s.Err()
	}
}

// decode decodes the result of an order, or returns why it failed.
func (r reply) decode(into any) error {
	switch {
	case r.OK == nil && r.Detail == "":
		return &Failure{node.NewNodeError(r.Failed), r.Advice, r.Busy}
	case r.OK == nil:
		own := nodeerr.Own(ui.Shorten(ui.OneLine(r.Detail), maxDetail))
		return &Failure{nodeerr.Errorf("%w (%s)", node.NewNodeError(r.Failed), own), r.Advice, r.Busy}
	case into == nil:
		return nil
	}
	return node.Decode(r.OK, into)
}

// Ended is closed when the agent has ended.
func (s *Session) Ended() <-chan struct{} { return s.ended }

// Err returns why the agent ended; nil while it runs.
func (s *Session) Err() error {
	select {
	case <-s.ended:
	default:
		return nil
	}
	if s.err == nil {
		return errors.New("agent on the node exited unexpectedly")
	}
	return fmt.Errorf("agent on the node exited: %w", s.err)
}

// End asks the agent to end, ends its input, and waits until it has ended. It abandons an agent
// that does not end within EndGrace; such an agent ends when it has heard nothing for its silence.
func (s *Session) End() {
	s.ending()
	select {
	case <-s.ended:
	case <-time.After(s.grace):
	}
	s.stop()
	<-s.ended
}
