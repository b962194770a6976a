//go:build linux

package main

import (
	"errors"
	"flag"
	"io"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/hint"
)

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"sideways"}, {"up", "x"}, {"up", "--nodes", "y"}, {"env", "x"}} {
		if err := runCommand(t.Context(), args, nil, io.Discard, io.Discard); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
	err := runCommand(t.Context(), []string{"down", "--name", "no-such-cluster"}, nil, io.Discard, io.Discard)
	if err == nil || hint.Of(err) == "" || exitCode(err, io.Discard) != 1 {
		t.Errorf("taking down what is not there: %v", err)
	}
	var said strings.Builder
	if code := exitCode(hint.With(errors.New("this"), "do that"), &said); code != 1 || said.String() != "slurm: this\nhint: do that\n" {
		t.Errorf("%d %q", code, said.String())
	}
	if code := exitCode(flag.ErrHelp, io.Discard); code != 2 {
		t.Errorf("help: %d", code)
	}
}
