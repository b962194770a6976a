package remote

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"
)

//go:embed receive.sh
var receive string

//go:embed sum.sh
var sumFunction string

// sumFirst prints the sha256 of the first $2 bytes of $1 by sumFunction.
const sumFirst = `head -c "$2" <"$1" | sum`

// Exit codes of receive.sh besides 0.
const (
	receiveNoFolder  = 81
	receiveFailed    = 83 // prints the reason
	receiveNoSpace   = 84 // prints the free bytes
	receiveForbidden = 85
	receiveSize      = 86 // prints the size it has
	receiveDigest    = 87 // prints the sha256 it has
)

// receipt describes an upload by a program on the node, for connections without SFTP. Like Conn.Put, it
// is atomic.
type receipt struct {
	Upload
	part string // the name of the file until it is complete
	user string // the user that runs the program, for messages
}

// explain returns the error of the program. said and errs are its stdout and stderr.
func (r receipt) explain(ctx context.Context, exit *ExitError, said, errs string) error {
	said, errs = strings.TrimSpace(said), strings.TrimSpace(errs)
	said = said[strings.LastIndexByte(said, '\n')+1:] // after a greeting of the node
	there, _ := strconv.ParseInt(said, 10, 64)        //nolint:errcheck // it may be a text
	creating := "creating a file in " + path.Dir(r.Path)
	switch exit.Code {
	case receiveNoFolder:
		return r.noFolder(creating)
	case receiveForbidden:
		return r.forbidden(creating, r.user)
	case receiveNoSpace:
		return r.noSpace(there)
	case receiveSize, receiveDigest:
		// The error of a file that arrived with another size or sha256.
		here, n, err := r.localSum(ctx, r.Size+1) // one byte more, to notice a file that has grown
		switch {
		case err != nil:
			return err
		case n != r.Size || here != r.SHA256:
			return r.changed(n)
		case exit.Code == receiveSize:
			return fmt.Errorf("%s has %d bytes on the node, expected %d", r.part, there, r.Size)
		}
		return r.corrupted(r.part, said)
	case receiveFailed:
		return r.failed("sending a file to "+r.Path, errors.New(reported(said)))
	}
	return fmt.Errorf("sending a file to %s: %w: %s", r.Path, exit, reported(errs))
}

// PutByProgram is Conn.Put by a program on the node, which runs as this user and reads the file from
// its standard input. PutByProgram ignores Upload.Sum.
func PutByProgram(ctx context.Context, on Runner, user string, up Upload) error {
	if err := up.check(ctx); err != nil {
		return err
	}
	r := receipt{Upload: up, part: up.Path + PartSuffix, user: user}
	// When ctx ends, the meter ends the input, and the program has abortGrace to end in order.
	lasting, over, flooded, cancel := bounded(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(abortGrace, cancel) })()
	said, errs := NewAnswer(over), NewAnswer(over)
	there, err := r.resume(ctx, on)
	if err != nil {
		return err
	}
	m, err := up.rest(ctx, there)
	if err != nil {
		return err
	}
	defer m.Close()
	if there > 0 && up.Progress != nil {
		up.Progress(there)
	}
	// The program reads the file from its standard input; explain reads its output.
	cmd := Command{Argv: []string{
		"sh", "-c", sumFunction + receive, "sh", r.part, r.Path,
		strconv.FormatUint(uint64(r.Mode.Perm()), 8), strconv.FormatInt(r.Size, 10), r.SHA256, strconv.FormatInt(there, 10),
	}}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = m, said, errs
	err = flooded(on.Run(lasting, cmd))
	var exit *ExitError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &exit):
		return r.explain(ctx, exit, said.String(), errs.String())
	}
	return err
}

// partScript prints the size of the file $1; sumFirst then prints the sha256 of its bytes. partScript removes $1 if it is
// not a regular file or has more than $2 bytes.
const partScript = `[ -e "$1" ] || [ -L "$1" ] || exit 0
if [ ! -L "$1" ] && [ -f "$1" ]; then n=$(wc -c <"$1"); else n=$(($2 + 1)); fi
if [ "$n" -gt "$2" ]; then rm -rf -- "$1"; exit; fi
set -- "$1" "$n"; echo $n
`

// resume returns how many bytes of the upload an earlier attempt left. If they differ, resume removes
// that file.
func (r receipt) resume(ctx context.Context, on Runner) (there int64, err error) {
	said, err := RunForAnswer(ctx, on, Command{
		Argv: []string{"sh", "-c", partScript + sumFunction + sumFirst, "sh", r.part, strconv.FormatInt(r.Size, 10)},
	})
	if err == nil && said == "" {
		return 0, nil
	}
	if err != nil && !errors.As(err, new(*ExitError)) {
		return 0, err
	}
	n, sum := part(said)
	if err == nil && n > 0 {
		here, _, err := r.localSum(ctx, n)
		if err != nil || here == sum {
			return n, err
		}
	}
	_, err = RunForAnswer(ctx, on, Command{Argv: []string{"rm", "-rf", "--", r.part}})
	if errors.As(err, new(*ExitError)) {
		err = nil // creating the file reports the reason
	}
	return 0, err
}

// part reads the output of partScript, after a greeting of the node.
func part(said string) (n int64, sum string) {
	lines := strings.Split(strings.TrimSpace(said), "\n")
	if len(lines) < 2 {
		return 0, ""
	}
	sum, _, _ = strings.Cut(lines[len(lines)-1], " ")
	n, err := strconv.ParseInt(lines[len(lines)-2], 10, 64)
	if err != nil {
		return 0, ""
	}
	return n, sum
}
