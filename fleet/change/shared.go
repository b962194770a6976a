package change

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/internal/fanout"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// A Claim is a node's statement about the directory to change. A node must not decide about another one: before a plan
// treats two nodes as sharing the directory, dsbuild verifies it. One node writes a random word into the directory, and
// the nodes that share it can read the word.
type Claim struct {
	Node     *fleet.Node
	Folder   string
	ID       string // equal on nodes that claim to share the directory; empty if it is the node's own
	Writable bool
}

const (
	// maxRounds bounds how many nodes with the same claim are tried as writers.
	maxRounds = 8
	// proofLimit is the time limit of one proof.
	proofLimit = 30 * time.Second
)

// writeWord reads a word as a line from standard input and writes it into the file
// $1/.dsbuild-$2. It removes the file when its input ends, even if the connection breaks.
const writeWord = `file=$1/.dsbuild-$2
trap 'rm -f -- "$file"' EXIT
trap 'exit 1' HUP INT TERM
umask 022
set -C
IFS= read -r word && printf '%s\n' "$word" >"$file" && echo "$2" && read -r word
exit 0`

// showWord prints the word in the file $1/.dsbuild-$2. It retries, because a network file system
// may show a new file late.
const showWord = `for pause in 0.2 1 2; do
	[ -r "$1/.dsbuild-$2" ] && exec cat -- "$1/.dsbuild-$2"
	sleep $pause
done`

// ConfirmShared corrects the IDs of claims: nodes that verifiably share the directory keep a common ID, all others
// lose theirs.
func ConfirmShared(ctx context.Context, claims []Claim, forks int) {
	byID := map[string][]*Claim{}
	for i := range claims {
		if c := &claims[i]; c.ID != "" {
			byID[c.ID] = append(byID[c.ID], c)
		}
	}
	var groups [][]*Claim
	for _, members := range byID {
		if len(members) > 1 {
			groups = append(groups, members)
		}
	}
	fanout.Run(ctx, groups, fanout.Options{Forks: forks}, func(ctx context.Context, members []*Claim) (struct{}, error) {
		confirmGroup(ctx, members, forks)
		return struct{}{}, nil
	})
}

// confirmGroup is ConfirmShared for nodes that claim the same folder.
func confirmGroup(ctx context.Context, members []*Claim, forks int) {
	id := members[0].ID
	for _, c := range members {
		c.ID = ""
	}
	for round := 1; round <= maxRounds && len(members) > 1; round++ {
		at := slices.IndexFunc(members, func(c *Claim) bool { return c.Writable })
		if at < 0 {
			return // no node can change the folder either
		}
		writer := members[at]
		members = slices.Delete(slices.Clone(members), at, at+1)
		for _, c := range sharers(ctx, writer, members, forks) {
			c.ID = fmt.Sprintf("%s, round %d", id, round)
			writer.ID = c.ID
			members = slices.DeleteFunc(members, func(m *Claim) bool { return m == c })
		}
	}
}

// sharers returns those of the other nodes that can read the word that writer writes.
func sharers(ctx context.Context, writer *Claim, others []*Claim, forks int) []*Claim {
	ctx, cancel := context.WithTimeout(ctx, proofLimit)
	defer cancel()
	word, file := rand.Text(), rand.Text()
	release, err := writer.writeWord(ctx, word, file)
	if err != nil {
		return nil
	}
	defer release()
	results := fanout.Run(ctx, others, fanout.Options{Forks: forks}, func(ctx context.Context, c *Claim) (string, error) {
		return remote.RunForAnswer(ctx, c.Node.Runner, remote.Command{
			Argv: []string{"sh", "-c", showWord, "sh", c.Folder, file},
		})
	})
	var shown []*Claim
	for at, c := range others {
		if r := results[at]; r.Err == nil && slices.Contains(strings.Fields(r.Value), word) {
			shown = append(shown, c)
		}
	}
	return shown
}

// writeWord makes the node write a word, and returns once the word is in the file; release
// removes the file.
func (c *Claim) writeWord(ctx context.Context, word, file string) (release func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	out, in := io.Pipe()
	written, ended := make(chan struct{}), make(chan error, 1)
	watch := &wordWatch{Answer: remote.NewAnswer(cancel), want: file, seen: written}
	go func() {
		err := c.Node.Runner.Run(ctx, remote.Command{
			Argv:  []string{"sh", "-c", writeWord, "sh", c.Folder, file},
			Stdin: out, Stdout: watch, Stderr: remote.NewAnswer(cancel),
		})
		out.CloseWithError(io.ErrClosedPipe) //nolint:errcheck // never fails
		ended <- err
	}()
	release = func() {
		in.Close() //nolint:errcheck // never fails
		select {
		case <-ended:
		case <-time.After(agent.EndGrace):
		}
		cancel()
	}
	go io.WriteString(in, word+"\n") //nolint:errcheck // the program's answer shows whether it arrived
	select {
	case <-written:
		return release, nil
	case err := <-ended:
		ended <- err
		release()
		return nil, fmt.Errorf("no output: %w", err)
	case <-ctx.Done():
		release()
		return nil, context.Cause(ctx)
	}
}

// wordWatch is the output of a program; it closes seen once the output contains want.
type wordWatch struct {
	*remote.Answer
	want string
	seen chan struct{}
	done bool
}

// Write implements io.Writer.
func (w *wordWatch) Write(b []byte) (int, error) {
	n, err := w.Answer.Write(b)
	if !w.done && strings.Contains(w.String(), w.want) {
		w.done = true
		close(w.seen)
	}
	return n, err
}
