package deploy

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/node"
)

//go:embed agent.py
var agentSource string

var agentProgram = node.NewProgram(proofSource, verifySource, node.UsesSource(), agentSource)

const (
	// pingEvery and silence: an agent that hears nothing for so long takes the
	// driver for dead, for a broken network does not always end its input.
	pingEvery = 20 * time.Second
	silence   = 120 * time.Second
	// lockWait covers an agent that still tidies up after a killed driver.
	lockWait = 20 * time.Second
)

// Version is a DeepSpeed as the report names it.
type Version struct {
	Version string `json:"version"`
	SHA256  string `json:"sha256"` // of the wheel it came from; "" if dsbuild did not install it
}

// name is a version in words.
func (v *Version) name() string {
	if v == nil {
		return "no DeepSpeed"
	}
	return "DeepSpeed " + v.Version
}

// plain is a version without what cannot be part of one: a node told it.
func (v *Version) plain() *Version {
	if v == nil {
		return nil
	}
	return &Version{node.PlainVersion(v.Version), node.PlainVersion(v.SHA256)}
}

// change is an agent at work on a node: it holds the lock of the environment,
// and puts it back should it not hear from us to the end.
type change struct {
	in      *io.PipeWriter
	ended   chan struct{} // closed when the agent is gone
	err     error         // why; valid once ended
	replies chan reply
	stop    context.CancelFunc
	asked   func(order []byte) // told of each order but pings
	host    inventory.Host     // that the agent is at work for

	mu     sync.Mutex
	number int
}

// changeRequest is what the agent is started with.
type changeRequest struct {
	Files    []arrival `json:"files"` // that are to be sent
	Look     bool      `json:"look"`  // nothing will be: say what there is, and end
	Run      string    `json:"run"`
	Label    string    `json:"label"` // the node, as part of a file name
	By       string    `json:"by"`
	SilenceS float64   `json:"silence_s"`
	LockS    float64   `json:"lock_s"`
}

// arrival is a file that is to arrive in the inbox.
type arrival struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"` // "": not known yet
}

// begun is the agent's first answer: what there is once the lock is held.
// Another deploy may have been there since the probe.
type begun struct {
	Inbox    string          `json:"inbox"`   // private, for uploads
	Arrived  []string        `json:"arrived"` // what need not be sent again
	Keeps    []role          `json:"keeps"`   // what was installed last
	Now      *node.Installed `json:"now"`
	Previous *node.Previous  `json:"previous"`
	Repaired bool            `json:"repaired"`
	Run      string          `json:"run"` // that made the last change that was recorded
}

// refusal is an order that the agent answered with a failure.
type refusal struct {
	error
	busy bool // another deploy is at work there
}

// reply is one message of the agent.
type reply struct {
	To     int             `json:"to"`
	OK     json.RawMessage `json:"ok"`
	Failed string          `json:"failed"`
	Advice string          `json:"advice"` // the code of a hint
	Busy   bool            `json:"busy"`
	Pip    []string        `json:"pip"` // what pip said, before the answer: for the log, which has it already
}

// startChange starts an agent and waits until it holds the lock. The agent
// outlives ctx, so that it can be asked to undo; end ends it.
func startChange(ctx context.Context, u *unit, req changeRequest) (*change, begun, error) {
	req.SilenceS = silence.Seconds()
	if req.Files == nil {
		req.Files = []arrival{} // not null
	}
	req.LockS = max(req.LockS, lockWait.Seconds())
	out, in := io.Pipe()
	lasting, stop := context.WithCancel(context.WithoutCancel(ctx))
	c := &change{in: in, ended: make(chan struct{}), replies: make(chan reply, 8), stop: stop, asked: u.log.order, host: u.host}
	runner := u.runner
	go func() {
		script := node.Script{Python: u.facts.Executable, Program: agentProgram, Request: req, More: out}
		c.err = script.Run(lasting, runner, c.receive)
		out.CloseWithError(io.ErrClosedPipe) // what still writes must not wait for a reader
		close(c.ended)
	}()
	go c.ping()
	var b begun
	if err := c.await(ctx, 0, &b); err != nil {
		c.end()
		return nil, begun{}, err
	}
	return c, b, nil
}

func (c *change) receive(m json.RawMessage) error {
	var r reply
	if err := node.Decode(m, &r); err != nil || r.Pip != nil {
		return err
	}
	select {
	case c.replies <- r:
		return nil
	default:
		return errors.New("the node answers what was not asked")
	}
}

func (c *change) ping() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.send(map[string]any{"do": "ping"}, nil) //nolint:errcheck // an ended agent shows elsewhere
		case <-c.ended:
			return
		}
	}
}

// send sends an order, and data that it says the size of.
func (c *change) send(order map[string]any, data []byte) error {
	line, err := json.Marshal(order)
	if err != nil {
		return err
	}
	if order["do"] != "ping" {
		c.asked(line)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err = c.in.Write(append(line, '\n')); err == nil && len(data) > 0 {
		_, err = c.in.Write(data)
	}
	return err
}

// ask gives an order and waits for its answer; into may be nil.
func (c *change) ask(ctx context.Context, order map[string]any, into any) error {
	return c.askWith(ctx, order, nil, into)
}

// askWith is ask with data that goes along, as it is, behind the line of the order.
func (c *change) askWith(ctx context.Context, order map[string]any, data []byte, into any) error {
	c.number++
	order["number"] = c.number
	if len(data) > 0 {
		order["bytes"] = len(data)
	}
	sent := make(chan error, 1)
	go func() { sent <- c.send(order, data) }()
	select {
	case err := <-sent:
		if err != nil {
			<-c.ended
			return c.gone()
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return c.await(ctx, c.number, into)
}

func (c *change) await(ctx context.Context, number int, into any) error {
	for {
		select {
		case r := <-c.replies:
			if r.To != number {
				continue // the answer to an order given up
			}
			if r.OK == nil {
				return withHint(&refusal{node.Words(r.Failed), r.Busy}, adviceFor(r.Advice, c.host))
			}
			if into == nil {
				return nil
			}
			return node.Decode(r.OK, into)
		case <-c.ended:
			if len(c.replies) > 0 {
				continue
			}
			return c.gone()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (c *change) gone() error {
	if c.err == nil {
		return errors.New("the program on the node ended before its time")
	}
	return fmt.Errorf("the program on the node ended: %w", c.err)
}

// learn tells the agent what another program there has found the digest of a file in the
// inbox to be.
func (c *change) learn(ctx context.Context, file, sha256 string) error {
	return c.ask(ctx, map[string]any{"do": "learn", "file": file, "sha256": sha256}, nil)
}

// digest is the sha256 of the first n bytes of a file in the inbox.
func (c *change) digest(ctx context.Context, file string, n int64) (string, error) {
	var got struct {
		SHA256 string `json:"sha256"`
	}
	err := c.ask(ctx, map[string]any{"do": "digest", "file": file, "size": n}, &got)
	return got.SHA256, err
}

// users are the processes that use the environment now.
func (c *change) users(ctx context.Context) (node.Uses, error) {
	var got node.Uses
	err := c.ask(ctx, map[string]any{"do": "users"}, &got)
	return got, err
}

// undone is the answer to undo.
type undone struct {
	Before   *Version `json:"before"`   // what is there now
	Recorded bool     `json:"recorded"` // the change had been made final: it stays
	Finished bool     `json:"finished"` // nothing is left to do for the next run
}

// undo puts the environment back as it was before, unless it is too late for that.
func (c *change) undo(ctx context.Context) (undone, error) {
	var u undone
	err := c.ask(ctx, map[string]any{"do": "undo"}, &u)
	return u, err
}

// end ends the agent: its input ends, so what is not recorded is put back.
func (c *change) end() {
	go func() { // a write under way may hold the pipe
		c.send(map[string]any{"do": "end"}, nil) //nolint:errcheck // an agent that is gone has ended
		c.in.Close()
	}()
	select {
	case <-c.ended:
	case <-time.After(endGrace):
	}
	c.stop()
}

// endGrace is how long an agent may take to tidy up once its input has ended.
const endGrace = 10 * time.Second

func withHint(err error, text string) error {
	if text == "" {
		return err
	}
	return hint.With(err, "%s", text)
}
