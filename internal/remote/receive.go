package remote

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
)

//go:embed receive.sh
var receive string

// Exit codes of receive.sh besides 0.
const (
	receiveNoFolder  = 81
	receiveNoSource  = 82
	receiveFailed    = 83 // prints the reason
	receiveNoSpace   = 84 // prints the free bytes
	receiveForbidden = 85
	receiveSize      = 86 // prints the size it has
	receiveDigest    = 87 // prints the sha256 it has
)

// ErrNoSource means that the source file on the node is gone.
var ErrNoSource = errors.New("it no longer exists")

// Receipt describes an upload that a program on the node puts in place, for connections without
// SFTP. Like Conn.Put, it writes the whole file or nothing.
type Receipt struct {
	Upload
	// Part is the private name of the file until it is complete.
	Part string
	// User is the user that runs the program, for messages.
	User string

	there string // number of bytes of Part that exist already, if the upload resumes; else ""
}

// NewReceipt returns the receipt of an upload that does not resume.
func NewReceipt(up Upload, user string) Receipt {
	return Receipt{Upload: up, Part: path.Join(path.Dir(up.Path), ".dsbuild-"+rand.Text()[:16]+PartSuffix), User: user}
}

// Command returns the program. It copies the file from source, a path on the node, or reads it from
// its standard input if source is "-". Explain reads its output.
func (r Receipt) Command(source string) Command {
	return Command{Argv: []string{
		"sh", "-c", receive, "sh", source, r.Part, r.Path,
		strconv.FormatUint(uint64(r.Mode.Perm()), 8), strconv.FormatInt(r.Size, 10), r.SHA256, r.there,
	}}
}

// Explain returns the error of the program. said and errs are its stdout and stderr, made safe for
// a terminal.
func (r Receipt) Explain(ctx context.Context, exit *ExitError, said, errs string) error {
	said, errs = strings.TrimSpace(said), strings.TrimSpace(errs)
	said = said[strings.LastIndexByte(said, '\n')+1:] // after a greeting of the node
	n, _ := strconv.ParseInt(said, 10, 64)            //nolint:errcheck // it may be a text
	creating := "creating a file in " + path.Dir(r.Path)
	switch exit.Code {
	case receiveNoSource:
		return ErrNoSource
	case receiveNoFolder:
		return r.NoFolder(creating)
	case receiveForbidden:
		return r.Forbidden(creating, r.User)
	case receiveNoSpace:
		return r.NoSpace(n)
	case receiveSize, receiveDigest:
		return r.unlike(ctx, exit.Code, said)
	case receiveFailed:
		return fault.WithHint(fmt.Errorf("bringing a file to %s: %s", r.Path, said),
			"check quota, read-only file systems and permissions: on the node, try: touch %s", Quote(path.Join(path.Dir(r.Path), ".dsbuild-test")))
	}
	return fmt.Errorf("bringing a file to %s: %w: %s", r.Path, exit, errs)
}

// putByProgram is Conn.Put by a program on the node that reads the file from its standard input, as this
// user. It ignores Upload.Sum and Upload.Write.
func putByProgram(ctx context.Context, on Runner, user string, up Upload) error {
	if err := up.Check(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	r, there := NewReceipt(up, user), int64(0)
	if up.Resume {
		var err error
		if there, err = r.resume(ctx, on); err != nil {
			return err
		}
	}
	local, err := up.Open()
	if err != nil {
		return err
	}
	defer local.Close()
	if _, err := local.Seek(there, io.SeekStart); err != nil {
		return fmt.Errorf("reading the local file: %w", err)
	}
	if there > 0 && up.Progress != nil {
		up.Progress(there)
	}
	// The limit is one byte more than announced, so that dsbuild notices a file that has grown.
	m := &meter{ctx: ctx, r: io.LimitReader(local, up.Size-there+1), limit: up.Limit, told: up.Progress}
	// When ctx ends, the meter ends the input, and the program has abortGrace to remove its file.
	lasting, over, flooded, cancel := bounded(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(abortGrace, cancel) })()
	said, errs := NewAnswer(over), NewAnswer(over)
	cmd := r.Command("-")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &packets{m}, said, errs
	err = flooded(on.Run(lasting, cmd))
	var exit *ExitError
	switch {
	case ctx.Err() != nil && !errors.As(err, &exit):
		return fmt.Errorf("%w (%s may be left there)", ctx.Err(), r.Part)
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &exit):
		return r.Explain(ctx, exit, said.String(), errs.String())
	}
	return err
}

// packets limits each Read to one packet, the most that a rate limit can count at once.
type packets struct{ r io.Reader }

// Read implements io.Reader.
func (p *packets) Read(b []byte) (int, error) { return p.r.Read(b[:min(len(b), packet)]) }

// unlike returns the error of a file that arrived with another size or sha256.
func (r Receipt) unlike(ctx context.Context, code int, said string) error {
	here, n, err := r.localSum(ctx, r.Size+1) // one byte more, to notice a file that has grown
	switch {
	case err != nil:
		return err
	case n != r.Size || here != r.SHA256:
		return r.Changed(n)
	case code == receiveSize:
		return fmt.Errorf("%s has %s bytes at the far end, %d were sent", r.Part, said, r.Size)
	}
	return r.Corrupted(r.Part, said)
}

// partScript prints the size of the file $1 and the sha256 of its bytes. It prints nothing if $1 is
// no regular file or has more than $2 bytes.
const partScript = `if [ -L "$1" ] || [ ! -f "$1" ]; then exit; fi
n=$(wc -c <"$1"); if [ "$n" -gt "$2" ]; then exit; fi
set -- "$1" "$n"; echo $n
` + sumScript

// resume finds out how much of the upload an earlier try left under the name of a resumed upload.
// If the bytes are not the same, resume removes that file.
func (r *Receipt) resume(ctx context.Context, on Runner) (there int64, err error) {
	r.Part, r.there = r.Path+PartSuffix, "0"
	said, err := RunForAnswer(ctx, on, Command{Argv: []string{"sh", "-c", partScript, "sh", r.Part, strconv.FormatInt(r.Size, 10)}})
	if err != nil && !errors.As(err, new(*ExitError)) {
		return 0, err
	}
	n, sum := part(said)
	if err == nil && n > 0 {
		here, _, err := r.localSum(ctx, n)
		if err != nil {
			return 0, err
		}
		if here == sum {
			r.there = strconv.FormatInt(n, 10)
			return n, nil
		}
	}
	_, err = RunForAnswer(ctx, on, Command{Argv: []string{"rm", "-rf", "--", r.Part}})
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
