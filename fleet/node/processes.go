package node

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/dsbuild/dsbuild/internal/remote"
)

// Processes are the processes that use an environment at one time.
type Processes struct {
	InUse  []Process `json:"in_use"` // the first of them
	More   int       `json:"in_use_more"`
	Unseen int       `json:"in_use_unseen"` // Python processes of others that cannot be looked into
	Hidden bool      `json:"in_use_hidden"` // the node hides the processes of others
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
