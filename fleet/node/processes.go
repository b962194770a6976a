package node

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Processes are the processes that use an environment at one time.
type Processes struct {
	InUse []Process `json:"in_use"` // the first of them
	More  int       `json:"in_use_more"`
	NotInspected
}

// NotInspected is what could not be found out about the processes of a node.
type NotInspected struct {
	Unseen  int  `json:"in_use_unseen"`  // Python processes of other users that cannot be inspected
	Hidden  bool `json:"in_use_hidden"`  // the node hides all processes of other users (hidepid)
	Unknown bool `json:"in_use_unknown"` // no process can be inspected
}

// Why returns why a process may use the environment unseen. It is empty if every process was inspected.
func (n NotInspected) Why() string {
	switch {
	case n.Unknown:
		return "no /proc"
	case n.Hidden:
		return "processes of other users are hidden: hidepid"
	case n.Unseen > 0:
		return "no permission to inspect " + ui.Count(n.Unseen, "Python process") + " of other users"
	}
	return ""
}

// missingInUse begins the entry of Facts.Missing that has the text of Why: the key of these facts in JSON.
const missingInUse = "in_use ("

// NotInspected returns why a process may use the environment unseen. It is empty if every process was inspected.
func (f Facts) NotInspected() string {
	for _, m := range f.Missing {
		if why, ok := strings.CutPrefix(m, missingInUse); ok {
			return strings.TrimSuffix(why, ")")
		}
	}
	return ""
}

var processesProgram = NewProgram("find_processes")

// FindProcesses repeats one question of the probe: which processes use the environment of an
// interpreter, here the path of one that has answered.
func FindProcesses(ctx context.Context, r remote.Runner, python string) (Processes, error) {
	var got *Processes
	s := Script{Python: python, Program: processesProgram}
	err := s.Run(ctx, r, func(m json.RawMessage) error {
		got = &Processes{}
		return Decode(m, got)
	})
	if err == nil && got == nil {
		err = errors.New("no output from the node")
	}
	if err != nil {
		return Processes{}, err
	}
	return *got, nil
}
