package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// HereTimeout is the timeout of a check of the machine itself.
const HereTimeout = 20 * time.Second

// SkippedHere are the checks that need other nodes.
func SkippedHere() []Check { return []Check{Names, Interface, Port, Network, Collective} }

// HereDialer connects to the local machine.
type HereDialer struct{ Runner remote.Runner }

// Dial implements remote.Dialer.
func (d HereDialer) Dial(context.Context, remote.Target) (remote.Conn, error) {
	return hereConn{d.Runner}, nil
}

// hereConn is the machine as a connection. A check puts no files there.
type hereConn struct{ remote.Runner }

func (hereConn) Put(context.Context, remote.Upload) error { return errors.ErrUnsupported }
func (hereConn) Close() error                             { return nil }

// Line summarizes the report of one node in a line. If the node is not ready, the error joins its findings.
func (r *Report) Line() (string, error) {
	n := r.Nodes[0]
	var wrong []error
	for _, f := range n.Findings {
		if f.Level == Error {
			wrong = append(wrong, fault.New(fault.Nodes, f.Hint, "%s: not ready: %s: %s", n.Name, f.Check, f.Text))
		}
	}
	if !r.Ready {
		if len(wrong) == 0 {
			wrong = append(wrong, fault.New(fault.Nodes, "", "%s: not ready: timed out after %s", n.Name, ui.Duration(HereTimeout)))
		}
		return "", errors.Join(wrong...)
	}
	line := n.Name + ": ready"
	if n.Facts != nil {
		line += fmt.Sprintf(": %s, torch %s", countGPUs(len(n.Facts.GPUs)), cmp.Or(n.Facts.Torch, "none"))
	}
	return line, nil
}
