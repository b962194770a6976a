package check

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/node"
)

//go:embed agent.py
var agentSource string

var agentProgram = node.NewProgram(agentSource)

//go:embed collective.py
var collectiveSource string

const (
	// pingEvery and silence: an agent that hears nothing for so long takes the driver
	// for dead, for a broken network does not always end its input.
	pingEvery = 20 * time.Second
	silence   = 120 * time.Second
)

// agent is the program of a check at work on a node.
type agent struct {
	in     *io.PipeWriter
	stop   context.CancelFunc
	events func(event)

	ended chan struct{} // closed when it is gone
	err   error         // why; valid once ended

	begun chan reply // what it finds by itself

	mu      sync.Mutex
	number  int
	waiting map[int]chan reply
}

// agentRequest is what an agent is started with.
type agentRequest struct {
	SilenceS   float64  `json:"silence_s"`
	LimitS     float64  `json:"limit_s"` // of what it looks at by itself
	Run        string   `json:"run"`     // names this check in files
	Word       string   `json:"word"`    // what callers of this node know
	First      bool     `json:"first"`   // it is the first node, which leaves a file for the others to see
	Master     string   `json:"master"`
	Devices    bool     `json:"devices"`
	Data       []string `json:"data"`
	Output     []string `json:"output"`
	Collective string   `json:"collective"` // the program of a process of a collective
}

// message is one of an agent's.
type message struct {
	To    int             `json:"to"`
	OK    json.RawMessage `json:"ok"`
	Error string          `json:"error"`
	Event *event          `json:"event"`
}

// event is how far a process of a collective has come.
type event struct {
	Rank    int     `json:"rank"`
	Stage   string  `json:"stage"`
	Error   string  `json:"error"`
	Seconds float64 `json:"seconds"`
	Latency float64 `json:"latency"`
	Bytes   int64   `json:"bytes"`

	from *member // whose connection it came over: a node speaks for its own processes
}

// reply is an answer, and when it came.
type reply struct {
	message
	at time.Time
}

// startAgent starts an agent. What it finds by itself is the answer to await.
func startAgent(ctx context.Context, r remote.Runner, python string, req agentRequest, events func(event)) *agent {
	req.SilenceS, req.Collective = silence.Seconds(), collectiveSource
	out, in := io.Pipe()
	lasting, stop := context.WithCancel(context.WithoutCancel(ctx))
	a := &agent{in: in, stop: stop, events: events, ended: make(chan struct{}), begun: make(chan reply, 1)}
	a.waiting = map[int]chan reply{0: a.begun}
	go func() {
		script := node.Script{Python: python, Program: agentProgram, Request: req, More: out}
		a.err = script.Run(lasting, r, a.receive)
		out.CloseWithError(io.ErrClosedPipe) // what still writes must not wait for a reader
		close(a.ended)
	}()
	go a.ping()
	return a
}

// receive takes one message.
func (a *agent) receive(m json.RawMessage) error {
	at := time.Now()
	var got message
	if err := node.Decode(m, &got); err != nil {
		return err
	}
	if got.Event != nil {
		a.events(*got.Event)
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	answer, ok := a.waiting[got.To]
	if !ok {
		return errors.New("the node answers what was not asked")
	}
	delete(a.waiting, got.To)
	answer <- reply{got, at}
	return nil
}

// ping says now and then that the driver is there.
func (a *agent) ping() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			a.send(map[string]any{"do": "ping"}) //nolint:errcheck // its end is seen by who waits for answers
		case <-a.ended:
			return
		}
	}
}

// send gives an order. A pipe takes one line after the other, whoever writes.
func (a *agent) send(order map[string]any) error {
	line, err := json.Marshal(order)
	if err != nil {
		return err
	}
	_, err = a.in.Write(append(line, '\n'))
	return err
}

// ask gives an order and waits for the answer. It returns when the order left and
// when the answer came.
func (a *agent) ask(ctx context.Context, do string, more map[string]any, into any) (sent, came time.Time, err error) {
	answer := make(chan reply, 1)
	a.mu.Lock()
	a.number++
	number := a.number
	a.waiting[number] = answer
	a.mu.Unlock()
	order := maps.Clone(more)
	if order == nil {
		order = map[string]any{}
	}
	order["do"], order["number"] = do, number
	sent = time.Now()
	go a.send(order) //nolint:errcheck // its end is seen by await; a slow line must not hold up the caller
	came, err = a.await(ctx, answer, into)
	return sent, came, err
}

// first waits for what the agent finds by itself.
func (a *agent) first(ctx context.Context, into any) error {
	_, err := a.await(ctx, a.begun, into)
	return err
}

func (a *agent) await(ctx context.Context, answer <-chan reply, into any) (time.Time, error) {
	select {
	case r := <-answer:
		return r.read(into)
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	case <-a.ended:
	}
	select {
	case r := <-answer: // its last word
		return r.read(into)
	default:
	}
	if a.err == nil {
		return time.Time{}, errors.New("dsbuild's program on the node ended")
	}
	return time.Time{}, a.err
}

func (r reply) read(into any) (time.Time, error) {
	if r.Error != "" {
		return r.at, node.Words(r.Error)
	}
	if into == nil {
		return r.at, nil
	}
	if err := node.Decode(r.OK, into); err != nil {
		return r.at, err
	}
	return r.at, nil
}

// end ends the agent and all that it has started: its input ends. A node that does
// not take notice in time is left to its own clock.
func (a *agent) end() {
	a.in.Close() //nolint:errcheck // it may be gone
	select {
	case <-a.ended:
	case <-time.After(endLimit):
	}
	a.stop()
	<-a.ended
}

// endLimit is how long an agent may take to end.
const endLimit = 10 * time.Second
