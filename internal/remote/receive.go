package remote

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/hint"
)

//go:embed receive.sh
var receive string

// What receive.sh can end with, beside 0.
const (
	receiveNoFolder  = 81
	receiveNoSource  = 82
	receiveFailed    = 83 // says why
	receiveNoSpace   = 84 // says how much there is
	receiveForbidden = 85
	receiveSize      = 86 // says what it is
	receiveDigest    = 87 // says what it is
)

// ErrNoSource is a file on a node that is to be brought to its place, and is gone.
var ErrNoSource = errors.New("it is not there any more")

// Receipt is how a program on the node brings an upload to its place, by ways that
// have no SFTP: whole or not at all, as Conn.Put does.
type Receipt struct {
	Upload
	// Part is the private name that it has until it is whole.
	Part string
	// User is as whom the program runs, for messages.
	User string

	there string // how much of Part there is, where the upload is resumed
}

// NewReceipt returns the receipt of an upload that is not resumed.
func NewReceipt(up Upload, user string) Receipt {
	return Receipt{Upload: up, Part: path.Join(path.Dir(up.Path), ".dsbuild-"+rand.Text()[:16]+PartSuffix), User: user}
}

// Command is that program. It takes the file from another one on the node, or,
// where source is "-", from its input. What it prints is for Explain.
func (r Receipt) Command(source string) Command {
	return Command{Argv: []string{
		"sh", "-c", receive, "sh", source, r.Part, r.Path,
		strconv.FormatUint(uint64(r.Mode.Perm()), 8), strconv.FormatInt(r.Size, 10), r.SHA256, r.there,
	}}
}

// Explain is the error of that program; said and errs are what it printed, clean.
func (r Receipt) Explain(ctx context.Context, exit *ExitError, said, errs string) error {
	said, errs = strings.TrimSpace(said), strings.TrimSpace(errs)
	said = said[strings.LastIndexByte(said, '\n')+1:] // behind what the node may greet with
	n, _ := strconv.ParseInt(said, 10, 64)            //nolint:errcheck // a text then
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
		return hint.With(fmt.Errorf("bringing a file to %s: %s", r.Path, said),
			"a quota, a read-only file system or a missing right: on the node try: touch %s", Quote(path.Join(path.Dir(r.Path), ".dsbuild-test")))
	}
	return fmt.Errorf("bringing a file to %s: %w: %s", r.Path, exit, errs)
}

// unlike is the error of a file that did not arrive as it was announced.
func (r Receipt) unlike(ctx context.Context, code int, said string) error {
	here, n, err := r.localSum(ctx, r.Size+1) // of one that has grown, too
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

// partScript prints how much there is of the file $1, and the sha256 of that;
// nothing where it is no file, or has more than $2 bytes.
const partScript = `if [ -L "$1" ] || [ ! -f "$1" ]; then exit; fi
n=$(wc -c <"$1"); if [ "$n" -gt "$2" ]; then exit; fi
set -- "$1" "$n"; echo $n
` + sumScript

// resume finds out how much of an upload is there from an earlier try, under the
// name that it has then; what is not the same is taken away.
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
		err = nil // creating it says why
	}
	return 0, err
}

// part reads what partScript printed, behind what the node may greet with.
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
