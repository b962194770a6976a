package jobrunner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

var supervisor = node.NewProgram("supervise")

// order is the first input of a node's program.
type order struct {
	Files    []orderFile       `json:"files"`
	Run      string            `json:"run"`
	Env      map[string]string `json:"env"`
	First    int               `json:"first"`
	WorkDir  string            `json:"workdir"`
	Script   string            `json:"script"` // "" for a module
	Python   string            `json:"python"`
	ReadOnly bool              `json:"look"` // the program can check that script, interpreter and GPUs exist
	GPUs     int               `json:"gpus"` // at least
	Port     int               `json:"port"` // must be free, if not 0
	Grace    float64           `json:"grace"`
}

type orderFile struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// event is a message of a node, or the end of its connection.
type event struct {
	from *member
	at   time.Time

	closed  bool // the connection has ended, because of err
	err     error
	ready   bool
	refused error // in the node's words
	message
}

// message is an unsolicited message of a node's program.
type message struct {
	Rank *process `json:"rank"`
	End  *ending  `json:"end"`
	Out  *output  `json:"out"`
}

// process reports the start or the end of a rank's process.
type process struct {
	Number  int  `json:"number"`
	Local   int  `json:"local"`
	Started bool `json:"begun"`
	Status  int  `json:"status"` // the wait status; -1 or 0 if not known
}

// output is text that the job wrote.
type output struct {
	Key  string `json:"key"`  // launcher, a rank, or local:N
	Kind string `json:"kind"` // the stream
	Text string `json:"text"`
}

// ending is the result of a node's part.
type ending struct {
	Code   int    `json:"code"`
	Signal int    `json:"signal"`
	Left   []int  `json:"left"` // processes that survived SIGKILL
	Reason string `json:"reason"`
}

func (e ending) hasPassed() bool { return e.Code == 0 && e.Signal == 0 && e.Reason == "" }

// reasonText returns the node's reason, marked as the node's output, or "".
func (m *member) reasonText() string {
	if m.end.Reason == "" {
		return ""
	}
	return m.withoutNode(node.NewNodeError(m.end.Reason)).Error()
}

// withoutNode removes the mention of a node from an error of the control node.
func (m *member) withoutNode(err error) error {
	if m.Host == nil {
		return node.WithoutNodePrefix(err)
	}
	return err
}

func (c *jobRun) runMember(ctx, dialing context.Context, m *member) error {
	link, err := m.Open(dialing)
	if err != nil {
		return err
	}
	defer link.Close() //nolint:errcheck // nothing is under way
	s, err := c.startSupervisor(dialing, link, m)
	if err != nil {
		return err
	}
	defer s.End()
	c.events <- event{from: m, at: time.Now(), ready: true}
	for {
		select {
		case word := <-m.orders:
			go s.Call(ctx, agent.Request{"do": word}, nil) //nolint:errcheck // s.Err has the reason
		case <-s.Ended():
			return s.Err()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// startSupervisor starts a node's program and waits until it reports whether the job can run there.
func (c *jobRun) startSupervisor(ctx context.Context, link Conn, m *member) (*agent.Session, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout,
		fmt.Errorf("node did not answer within %s whether the job can run", startTimeout))
	defer cancel()
	// The interpreters for a node's program, in order of preference. The job's own may exist only
	// in a container or after a setup line.
	candidates := []string{"python3", "/usr/libexec/platform-python"}
	if m.Python != "" {
		candidates = append([]string{m.Python}, candidates...)
	}
	// Make the first input of a node's program.
	j := c.opt.Job
	o := order{
		Run: m.Main, Env: map[string]string{}, First: m.First, WorkDir: j.WorkDir, Script: j.Script, Python: m.Python,
		Grace: c.opt.Grace.Seconds(),
	}
	if j.Module {
		o.Script = "" // the interpreter finds the module
	}
	maps.Copy(o.Env, c.opt.Env)
	for _, f := range m.Files {
		o.Files = append(o.Files, orderFile{f.Name, f.Text})
	}
	// A setup line may change the folder and PATH; a prefix may change everything.
	o.ReadOnly = len(j.Setup) == 0 && (m.Host == nil || m.Host.Setup == "" && len(m.Host.ExecPrefix) == 0)
	o.GPUs = j.NeededGPUs(m.Host)
	if m == c.members[0] && len(c.members) > 1 {
		o.Port = j.Port
	}
	s, err := agent.Start(ctx, link, agent.Options{
		Script:           node.Script{Find: candidates, Program: supervisor, Request: o, Endless: true},
		HeartbeatTimeout: c.opt.HeartbeatTimeout,
		Event:            func(text json.RawMessage) error { return c.receive(m, text) },
	}, nil)
	if errors.As(err, new(*agent.Failure)) {
		c.events <- event{from: m, at: time.Now(), refused: m.withoutNode(err)}
	}
	if errors.As(err, new(*remote.ExitError)) {
		err = fault.WithHint(err, "install Python 3.6 or newer on the node")
	}
	return s, err
}

// receive queues a message of a node's program.
func (c *jobRun) receive(m *member, text json.RawMessage) error {
	e := event{from: m, at: time.Now()}
	// node.Decode would cut long texts. The log cleans each line when it is written.
	if err := json.Unmarshal(text, &e.message); err != nil {
		return fmt.Errorf("unexpected message from the node: %w", err)
	}
	if e.End != nil {
		reason := ui.OneLine(e.End.Reason)
		e.End.Reason = reason[:min(len(reason), 500)]
	}
	c.events <- e
	return nil
}
