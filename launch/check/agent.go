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
	// silence is the agent's limit without any order: it then takes the driver for
	// dead, because a broken network does not always close its input.
	pingEvery = 20 * time.Second
	silence   = 120 * time.Second
)

// agent is the session with the check's program on a node.
type agent struct {
	in     *io.PipeWriter
	stop   context.CancelFunc
	events func(event)

	ended chan struct{} // closed when the program has ended
	err   error         // the reason; valid once ended

	begun chan reply // the survey

	mu      sync.Mutex
	number  int
	waiting map[int]chan reply
}

// agentRequest is the first input of an agent.
type agentRequest struct {
	SilenceS   float64  `json:"silence_s"`
	LimitS     float64  `json:"limit_s"` // of the survey
	Run        string   `json:"run"`     // names this check in files
	Word       string   `json:"word"`    // the password of callers
	First      bool     `json:"first"`   // the first node leaves a file for the others to see
	Master     string   `json:"master"`
	Devices    bool     `json:"devices"`
	Data       []string `json:"data"`
	Output     []string `json:"output"`
	Collective string   `json:"collective"` // the program of each process of a collective
}

// message is one of an agent's.
type message struct {
	To    int             `json:"to"`
	OK    json.RawMessage `json:"ok"`
	Error string          `json:"error"`
	Event *event          `json:"event"`
}

// event reports the stage of a process of a collective.
type event struct {
	Rank    int     `json:"rank"`
	Stage   string  `json:"stage"`
	Error   string  `json:"error"`
	Seconds float64 `json:"seconds"`
	Latency float64 `json:"latency"`
	Bytes   int64   `json:"bytes"`

	from *member // the sender: a node reports only its own processes
}

// reply is an answer with its arrival time.
type reply struct {
	message
	at time.Time
}

// startAgent starts an agent. Its survey is the first answer.
func startAgent(ctx context.Context, r remote.Runner, python string, req agentRequest, events func(event)) *agent {
	req.SilenceS, req.Collective = silence.Seconds(), collectiveSource
	out, in := io.Pipe()
	lasting, stop := context.WithCancel(context.WithoutCancel(ctx))
	a := &agent{in: in, stop: stop, events: events, ended: make(chan struct{}), begun: make(chan reply, 1)}
	a.waiting = map[int]chan reply{0: a.begun}
	go func() {
		script := node.Script{Python: python, Program: agentProgram, Request: req, More: out}
		a.err = script.Run(lasting, r, a.receiveMessage)
		out.CloseWithError(io.ErrClosedPipe) // no writer must wait for a reader any more
		close(a.ended)
	}()
	go a.pingLoop()
	return a
}

// receiveMessage takes one message.
func (a *agent) receiveMessage(m json.RawMessage) error {
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
		return errors.New("the node answers a question that dsbuild did not ask")
	}
	delete(a.waiting, got.To)
	answer <- reply{got, at}
	return nil
}

// pingLoop sends a sign of life at intervals.
func (a *agent) pingLoop() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			a.sendOrder(map[string]any{"do": "ping"}) //nolint:errcheck // awaitReply sees the end
		case <-a.ended:
			return
		}
	}
}

// sendOrder writes an order. The pipe writes whole lines, also for several writers.
func (a *agent) sendOrder(order map[string]any) error {
	line, err := json.Marshal(order)
	if err != nil {
		return err
	}
	_, err = a.in.Write(append(line, '\n'))
	return err
}

// ask sends an order and waits for the answer. It returns the times of both.
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
	go a.sendOrder(order) //nolint:errcheck // awaitReply sees the end; a slow line must not hold up the caller
	came, err = a.awaitReply(ctx, answer, into)
	return sent, came, err
}

// awaitSurvey waits for the agent's survey.
func (a *agent) awaitSurvey(ctx context.Context, into any) error {
	_, err := a.awaitReply(ctx, a.begun, into)
	return err
}

func (a *agent) awaitReply(ctx context.Context, answer <-chan reply, into any) (time.Time, error) {
	select {
	case r := <-answer:
		return r.decodeReply(into)
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	case <-a.ended:
	}
	select {
	case r := <-answer: // its last word
		return r.decodeReply(into)
	default:
	}
	if a.err == nil {
		return time.Time{}, errors.New("dsbuild's program on the node ended")
	}
	return time.Time{}, a.err
}

func (r reply) decodeReply(into any) (time.Time, error) {
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

// endSession closes the agent's input. The agent then ends with all its processes. A
// node that does not react in time ends them after the silence limit.
func (a *agent) endSession() {
	a.in.Close() //nolint:errcheck // it may be gone
	select {
	case <-a.ended:
	case <-time.After(endLimit):
	}
	a.stop()
	<-a.ended
}

// endLimit is the time limit for an agent to end.
const endLimit = 10 * time.Second
