package deploy

import (
	"context"
	_ "embed"
	"errors"
	"time"

	"github.com/dsbuild/dsbuild/agent"
	"github.com/dsbuild/dsbuild/deploy/changes"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/signing"
	"github.com/dsbuild/dsbuild/verify"
)

//go:embed agent.py
var agentSource string

var agentProgram = agent.NewProgram(verify.FilesSource(), node.UsesSource(), changes.Source(), signing.NodeSource(), agentSource)

// lockWait is how long an agent waits for the lock. It covers an agent that still cleans up
// after a killed driver.
const lockWait = 20 * time.Second

// agentSession is a running agent on a node. The agent holds the lock of the environment. If it
// loses the driver before the change is recorded, it restores the environment.
type agentSession struct {
	*agent.Session
	host inventory.Host // the agent's node
}

// sessionRequest is the agent's start request; beginReply answers it. Then the agent obeys these
// orders (verbs in agent.py). learn and digest come from package changes.
//
//	order      fields                                              answer
//	users      –                                                   node.Uses
//	learn      file, sha256 (of an upload that another program     –
//	           on the node has read)
//	digest     file, size (of an upload, its first bytes)          sha256
//	fetch      needs, fixed, pip, limit_s                          wheels: name, version, file, sha256
//	install    wheels (DeepSpeed's first: name, file, sha256),     version, record, judged
//	           pip, limit_s, policy, signed,
//	           bytecode (optional: file, magic, sha256),
//	           verifier (optional: file, sha256)
//	roll_back  policy, verifier (optional)                         version, record, noted, judged
//	verify     request (verify.Request)                            verify.Reply
//	record     installed, journal, forget (the kept version)       –
//	undo       – (it also interrupts an order)                     undoReply
//
// An order that fails has a Failure of package agent as its answer, with the code of a hint.
type sessionRequest struct {
	Files []expectedFile `json:"files"` // files that the driver will send
	Look  bool           `json:"look"`  // no files: report the current state and end
	Run   string         `json:"run"`
	Label string         `json:"label"` // the node's name, as part of a file name
	By    string         `json:"by"`
	LockS float64        `json:"lock_s"`
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

// startSession starts an agent and waits until it holds the lock. The agent outlives ctx, so that
// the driver can still ask it to undo; at its End it undoes a change that is not recorded.
func startSession(ctx context.Context, u *nodeRun, req sessionRequest) (*agentSession, beginReply, error) {
	if req.Files == nil {
		req.Files = []expectedFile{} // not null
	}
	req.LockS = max(req.LockS, lockWait.Seconds())
	var b beginReply
	s, err := agent.Start(ctx, u.Runner, agent.Options{
		Script: node.Script{Python: u.facts.Executable, Program: agentProgram, Request: req}, Event: changes.IgnoreOutput, Asked: u.Log.Order,
	}, &b)
	if err != nil {
		return nil, beginReply{}, refused(err, u.Host)
	}
	return &agentSession{s, u.Host}, b, nil
}

// ask sends an order, waits for the answer and decodes it into into, unless into is nil.
func (c *agentSession) ask(ctx context.Context, order agent.Order, into any) error {
	return refused(c.Ask(ctx, order, into), c.host)
}

// refused adds the hint to the failure of an order.
func refused(err error, h inventory.Host) error {
	var f *agent.Failure
	if !errors.As(err, &f) {
		return err
	}
	return verify.WithAdvice(f, f.Advice, h)
}

// users returns the processes that use the environment now.
func (c *agentSession) users(ctx context.Context) (node.Uses, error) {
	var got node.Uses
	err := c.ask(ctx, agent.Order{"do": "users"}, &got)
	return got, err
}

// undoReply is the agent's answer to undo.
type undoReply struct {
	Before   *report.Version `json:"before"`   // the version there now
	Recorded bool            `json:"recorded"` // the change was already final and stays
	Finished bool            `json:"finished"` // the next run has nothing left to repair
}

// undo restores the previous state of the environment, unless the change is already final.
func (c *agentSession) undo(ctx context.Context) (undoReply, error) {
	var u undoReply
	err := c.ask(ctx, agent.Order{"do": "undo"}, &u)
	return u, err
}
