package node

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/dsbuild/dsbuild/internal/remote"
)

// Uses are the processes that use an environment at one time.
type Uses struct {
	InUse  []Process `json:"in_use"` // the first of them
	More   int       `json:"in_use_more"`
	Unseen int       `json:"in_use_unseen"` // Python processes of others that cannot be looked into
}

var usersProgram = NewProgram(UsesSource(), "emit(users())\n")

// Users repeats one question of the probe: which processes use the environment of an
// interpreter, here the path of one that has answered.
func Users(ctx context.Context, r remote.Runner, python string) (Uses, error) {
	var got *Uses
	s := Script{Python: python, Program: usersProgram}
	err := s.Run(ctx, r, func(m json.RawMessage) error {
		got = &Uses{}
		return Decode(m, got)
	})
	if err == nil && got == nil {
		err = errors.New("the node gave no answer")
	}
	if err != nil {
		return Uses{}, err
	}
	return *got, nil
}
