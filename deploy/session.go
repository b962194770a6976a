package deploy

import (
	_ "embed"

	"github.com/dsbuild/dsbuild/agent"
	"github.com/dsbuild/dsbuild/deploy/changes"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/verify"
)

//go:embed agent.py
var agentSource string

var agentProgram = agent.NewProgram(verify.FilesSource(), node.ProcessesSource(), changes.Source(), agentSource)

// sessionRequest is the agent's start request; beginReply answers it. Then the agent obeys these
// orders (verbs in agent.py). learn and digest come from package changes.
//
//	order      fields                                              answer
//	users      –                                                   node.Processes
//	learn      file, sha256 (of an upload that another program     –
//	           on the node has read)
//	digest     file, size (of an upload, its first bytes)          sha256
//	fetch      needs, fixed, pip, limit_s                          wheels: name, version, file, sha256
//	install    wheels (DeepSpeed's first: name, file, sha256),     version, record
//	           pip, limit_s, accepted (signing.Signed),
//	           bytecode (optional: file, magic, sha256)
//	kept       –                                                   signing.Kept, digest (of its files)
//	roll_back  accepted (that digest; "" without a policy)         version, record, altered, noted, wrong_byte_code
//	verify_back – (compares it with what was moved aside)          –
//	verify     request (verify.Request)                            verify.Reply
//	record     installed, journal, forget (the kept version)       –
//	undo       – (it also interrupts an order)                     undoReply
//
// An order that fails has a Failure of package agent as its answer, with the code of a hint.
type sessionRequest struct {
	Files      []expectedFile `json:"files"` // files that the driver will send
	StatusOnly bool           `json:"look"`  // no files: report the current state and end
	Run        string         `json:"run"`
	Label      string         `json:"label"` // the node's name, as part of a file name
	By         string         `json:"by"`
	LockS      float64        `json:"lock_s"`
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

// undoReply is the agent's answer to undo.
type undoReply struct {
	Before   *report.Version `json:"before"`   // the version there now
	Recorded bool            `json:"recorded"` // the change was already final and stays
	Finished bool            `json:"finished"` // the next run has nothing left to repair
}
