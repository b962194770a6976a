package check

import (
	"fmt"

	"github.com/dsbuild/dsbuild/node"
)

// Status is what became of a node.
type Status string

// The statuses of nodes.
const (
	OK          Status = "ok"          // nothing was found that is an error
	Failed      Status = "failed"      // something was
	Unreachable Status = "unreachable" // no connection
	Skipped     Status = "skipped"     // not attempted: the run was interrupted
)

// Report is what was found: the JSON of --report and --json.
type Report struct {
	Command     string       `json:"command"` // check
	Ready       bool         `json:"ready"`   // every node is ok
	Master      Master       `json:"master"`
	Summary     Summary      `json:"summary"`
	Causes      []Cause      `json:"causes"` // the findings, the same of several nodes once
	Pairs       Pairs        `json:"pairs"`
	Collectives []Sum        `json:"collectives"`
	NotChecked  []Note       `json:"not_checked"`
	Nodes       []NodeReport `json:"nodes"` // in inventory order
}

// Master is where all meet.
type Master struct {
	Node    string `json:"node"`
	Address string `json:"address"`
	Port    int    `json:"port"`
}

// Summary counts nodes by status.
type Summary struct {
	OK          int `json:"ok"`
	Failed      int `json:"failed"`
	Unreachable int `json:"unreachable"`
	Skipped     int `json:"skipped"`
}

// Pairs counts the calls from node to node.
type Pairs struct {
	Tried  int `json:"tried"`
	Failed int `json:"failed"`
}

// Note is something that was not checked, and why.
type Note struct {
	Check Kind   `json:"check"`
	Why   string `json:"why"`
}

// NodeReport is what was found of one node.
type NodeReport struct {
	Name      string      `json:"name"`
	Status    Status      `json:"status"`
	Findings  []Finding   `json:"findings"`
	Address   string      `json:"address"`   // by which others reach it; "": not known
	Interface string      `json:"interface"` // of that address
	Clock     *Skew       `json:"clock"`     // null: not known
	Facts     *node.Facts `json:"facts"`     // without its distributions
	Seconds   float64     `json:"seconds"`   // until it had told what it finds by itself
}

// report sums up.
func (r *run) report() *Report {
	rep := &Report{
		Command: "check", Master: Master{r.first().host.Name, r.master(), r.opt.Port}, Pairs: r.pairs,
		Collectives: append([]Sum{}, r.sums...), NotChecked: append([]Note{}, r.notes...),
	}
	for _, m := range r.members {
		n := NodeReport{Name: m.host.Name, Status: m.status, Findings: append([]Finding{}, m.findings...), Clock: m.skew, Seconds: m.seconds}
		if m.status == OK && m.hasError() {
			n.Status = Failed
		}
		if m.route != nil {
			n.Address, n.Interface = m.route.Address, m.route.Interface
		}
		if m.facts != nil {
			f := *m.facts
			f.Dists, f.Along = nil, nil
			n.Facts = &f
		}
		switch n.Status {
		case OK:
			rep.Summary.OK++
		case Failed:
			rep.Summary.Failed++
		case Unreachable:
			rep.Summary.Unreachable++
		case Skipped:
			rep.Summary.Skipped++
		}
		rep.Nodes = append(rep.Nodes, n)
	}
	rep.Ready = rep.Summary.OK == len(rep.Nodes)
	rep.Causes = causes(rep.Nodes)
	return rep
}

func (m *member) hasError() bool {
	for _, f := range m.findings {
		if f.Level == Error {
			return true
		}
	}
	return false
}

// Err is nil where every node is ok; else it carries exit code 3.
func (r *Report) Err() error {
	if r.Ready {
		return nil
	}
	return &notReadyError{fmt.Sprintf("%d of %d nodes are not ready", len(r.Nodes)-r.Summary.OK, len(r.Nodes))}
}

type notReadyError struct{ text string }

func (e *notReadyError) Error() string { return e.text }
func (e *notReadyError) ExitCode() int { return 3 }
