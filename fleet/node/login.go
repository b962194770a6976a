package node

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// incomplete is what boot says if something else has read a part of its input.
const incomplete = "program arrived incomplete"

const startupFile = "startup file of the login shell (~/.bashrc, ~/.zshenv, ~/.ssh/rc)"

// quietShells begins each hint about startup files.
const quietShells = "put this first in ~/.bashrc of this account on the node: [[ $- == *i* ]] || return; "

// loginFault finds out why a program did not answer: it runs a small one that shows whether commands run, and get their
// input, in the login shell and after setup:. It returns nil if they do.
func loginFault(ctx context.Context, r remote.Runner) error {
	mark := newMark()
	said, err := remote.RunForAnswer(ctx, r, remote.Command{
		Argv: []string{"sh", "-c", `echo "$1"; cat`, "sh", mark + "runs"}, Stdin: strings.NewReader(mark + "reads\n"),
	})
	if err != nil && !errors.As(err, new(*remote.ExitError)) || strings.Contains(said, mark+"reads") {
		return nil
	}
	if strings.Contains(said, mark+"runs") {
		return fault.WithHint(errors.New("a "+startupFile+", or setup:, read dsbuild's program as its input"),
			quietShells+"test with: echo ok | ssh NODE cat")
	}
	why := errors.New("no output from the node: a " + startupFile +
		", or setup:, exits or closes its output before dsbuild's command")
	return fault.WithHint(why, quietShells+"test with: ssh NODE echo ok")
}

// floodError is the error of a node that printed too much before the program's first message.
func floodError() error {
	return fault.WithHint(fmt.Errorf("%w, before dsbuild's program began: from a %s, or setup:",
		remote.ErrFlood, startupFile), quietShells+"test with: ssh NODE true | wc -c")
}

// blockedError is the error of a probe whose time is over before it said anything.
func blockedError(late error) error {
	return fault.WithHint(fmt.Errorf("%w without any output from the node", late),
		"look for what blocks it: a startup file of the login shell, or a home on a hung file system (time ssh NODE true); "+
			"or the file system of its Python")
}
