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

	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/node"
)

//go:embed agent.py
var agentSource string

var agentProgram = node.NewProgram(proofSource, verifySource, node.UsesSource(), agentSource)

const (
	// pingEvery and silence are the intervals of the life line. An agent that receives nothing
	// for silence takes the driver for dead: a broken network does not always end the agent's
	// input.
	pingEvery = 20 * time.Second
	silence   = 120 * time.Second
	// lockWait is how long an agent waits for the lock. It covers an agent that still cleans up
	// after a killed driver.
	lockWait = 20 * time.Second
)

// Version is a DeepSpeed version in the report.
type Version struct {
	Version string `json:"version"`
	SHA256  string `json:"sha256"` // of the installed wheel; "" if dsbuild did not install it
}

// name is the version for a message.
func (v *Version) name() string {
	if v == nil {
		return "no DeepSpeed"
	}
	return "DeepSpeed " + v.Version
}

// plain returns the version without characters that no version has: the text came from a node.
func (v *Version) plain() *Version {
	if v == nil {
		return nil
	}
	return &Version{node.PlainVersion(v.Version), node.PlainVersion(v.SHA256)}
}

// agentSession is a running agent on a node. The agent holds the lock of the environment. If it
// loses the driver before the change is recorded, it restores the environment.
type agentSession struct {
	in      *io.PipeWriter
	ended   chan struct{} // closed when the agent has ended
	err     error         // why it ended; valid once ended is closed
	replies chan reply
	stop    context.CancelFunc
	asked   func(order []byte) // called with each order except pings
	host    inventory.Host     // the agent's node

	mu     sync.Mutex
	number int
}

// sessionRequest is the agent's start request.
type sessionRequest struct {
	Files    []expectedFile `json:"files"` // files that the driver will send
	Look     bool           `json:"look"`  // no files: report the current state and end
	Run      string         `json:"run"`
	Label    string         `json:"label"` // the node's name, as part of a file name
	By       string         `json:"by"`
	SilenceS float64        `json:"silence_s"`
	LockS    float64        `json:"lock_s"`
}

// expectedFile is a file that the driver will send to the inbox.
type expectedFile struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
}

// beginReply is the agent's first answer: the state of the environment once the agent holds the
// lock. Another deploy may have changed it since the probe.
type beginReply struct {
	Inbox    string          `json:"inbox"`   // private folder for uploads
	Arrived  []string        `json:"arrived"` // names of files that need not be sent again
	Now      *node.Installed `json:"now"`
	Previous *node.Previous  `json:"previous"`
	Repaired bool            `json:"repaired"`
	Run      string          `json:"run"` // the run that made the last recorded change
}

// refusal is the agent's failure answer to an order.
type refusal struct {
	error
	busy bool // another deploy holds the lock
}

// Unwrap returns the error in the node's words.
func (r *refusal) Unwrap() error { return r.error }

// reply is one message from the agent.
type reply struct {
	To     int             `json:"to"`
	OK     json.RawMessage `json:"ok"`
	Failed string          `json:"failed"`
	Advice string          `json:"advice"` // the code of a hint
	Detail string          `json:"detail"` // the part of the failure that only this node has
	Busy   bool            `json:"busy"`
	Pip    []string        `json:"pip"` // pip's output, sent before the answer; ignored here because the log already has it
}

// failure returns the error in the node's words.
func (r reply) failure() error {
	if r.Detail == "" {
		return node.Words(r.Failed)
	}
	return cause.Errorf("%w (%s)", node.Words(r.Failed), cause.Own(ui.Shorten(ui.OneLine(r.Detail), mostDetail)))
}

// mostDetail bounds the detail of a failure, in bytes.
const mostDetail = 300

// startSession starts an agent and waits until it holds the lock. The agent outlives ctx, so that
// the driver can still ask it to undo; end stops it.
func startSession(ctx context.Context, u *nodeRun, req sessionRequest) (*agentSession, beginReply, error) {
	req.SilenceS = silence.Seconds()
	if req.Files == nil {
		req.Files = []expectedFile{} // not null
	}
	req.LockS = max(req.LockS, lockWait.Seconds())
	out, in := io.Pipe()
	lasting, stop := context.WithCancel(context.WithoutCancel(ctx))
	c := &agentSession{in: in, ended: make(chan struct{}), replies: make(chan reply, 8), stop: stop, asked: u.log.order, host: u.host}
	runner := u.runner
	go func() {
		script := node.Script{Python: u.facts.Executable, Program: agentProgram, Request: req, More: out}
		c.err = script.Run(lasting, runner, c.receive)
		out.CloseWithError(io.ErrClosedPipe) // a pending write must not wait for a reader
		close(c.ended)
	}()
	go c.ping()
	var b beginReply
	if err := c.await(ctx, 0, &b); err != nil {
		c.end()
		return nil, beginReply{}, err
	}
	return c, b, nil
}

func (c *agentSession) receive(m json.RawMessage) error {
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

func (c *agentSession) ping() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.send(map[string]any{"do": "ping"}) //nolint:errcheck // an ended agent shows elsewhere
		case <-c.ended:
			return
		}
	}
}

// send writes an order to the agent's input.
func (c *agentSession) send(order map[string]any) error {
	line, err := json.Marshal(order)
	if err != nil {
		return err
	}
	if order["do"] != "ping" {
		c.asked(line)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err = c.in.Write(append(line, '\n'))
	return err
}

// ask sends an order, waits for the answer and decodes it into into, unless into is nil.
func (c *agentSession) ask(ctx context.Context, order map[string]any, into any) error {
	c.number++
	order["number"] = c.number
	sent := make(chan error, 1)
	go func() { sent <- c.send(order) }()
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

func (c *agentSession) await(ctx context.Context, number int, into any) error {
	for {
		select {
		case r := <-c.replies:
			if r.To != number {
				continue // the answer to an order that the driver gave up
			}
			if r.OK == nil {
				return withHint(&refusal{r.failure(), r.Busy}, adviceFor(r.Advice, c.host))
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

func (c *agentSession) gone() error {
	if c.err == nil {
		return errors.New("the program on the node ended before its time")
	}
	return fmt.Errorf("the program on the node ended: %w", c.err)
}

// learn tells the agent the digest of a file in the inbox, computed by another program on the
// node.
func (c *agentSession) learn(ctx context.Context, file, sha256 string) error {
	return c.ask(ctx, map[string]any{"do": "learn", "file": file, "sha256": sha256}, nil)
}

// digest returns the sha256 of the first n bytes of a file in the inbox.
func (c *agentSession) digest(ctx context.Context, file string, n int64) (string, error) {
	var got struct {
		SHA256 string `json:"sha256"`
	}
	err := c.ask(ctx, map[string]any{"do": "digest", "file": file, "size": n}, &got)
	return got.SHA256, err
}

// users returns the processes that use the environment now.
func (c *agentSession) users(ctx context.Context) (node.Uses, error) {
	var got node.Uses
	err := c.ask(ctx, map[string]any{"do": "users"}, &got)
	return got, err
}

// undoReply is the agent's answer to undo.
type undoReply struct {
	Before   *Version `json:"before"`   // the version there now
	Recorded bool     `json:"recorded"` // the change was already final and stays
	Finished bool     `json:"finished"` // the next run has nothing left to repair
}

// undo restores the previous state of the environment, unless the change is already final.
func (c *agentSession) undo(ctx context.Context) (undoReply, error) {
	var u undoReply
	err := c.ask(ctx, map[string]any{"do": "undo"}, &u)
	return u, err
}

// end stops the agent by ending its input; the agent then undoes a change that is not recorded.
func (c *agentSession) end() {
	go func() { // a pending write may hold the pipe
		c.send(map[string]any{"do": "end"}) //nolint:errcheck // a send to an agent that has ended may fail
		c.in.Close()
	}()
	select {
	case <-c.ended:
	case <-time.After(endGrace):
	}
	c.stop()
}

// endGrace is how long an agent may take to clean up after its input has ended.
const endGrace = 10 * time.Second

func withHint(err error, text string) error {
	if text == "" {
		return err
	}
	return hint.With(err, "%s", text)
}
