package deploy

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/agent"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/fanout"
	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// A node reports which site-packages it has (Facts.SiteID). One node's report must not decide
// about another: before a plan treats two nodes as sharing an environment, dsbuild proves that
// they do. One node writes a random word into its site-packages; a node that shares the folder
// can read the word.

const (
	// maxRounds bounds how many nodes with the same SiteID are tried as writers.
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

// proveSharing corrects the SiteIDs in known: nodes that provably share site-packages keep a
// common SiteID, all others that claimed to share lose theirs.
func (d *Deployment) proveSharing(ctx context.Context, known []ProbeResult) {
	claims := map[string][]int{}
	for i, n := range known {
		if id := n.Facts.SiteID; n.Err == nil && id != "" {
			claims[id] = append(claims[id], i)
		}
	}
	var groups [][]int
	for _, members := range claims {
		if len(members) > 1 {
			groups = append(groups, members)
		}
	}
	fanout.Run(ctx, groups, fanout.Options{Forks: d.fleet.Forks()}, func(ctx context.Context, members []int) (struct{}, error) {
		d.proveGroup(ctx, known, members)
		return struct{}{}, nil
	})
}

// proveGroup is proveSharing for nodes that report the same site-packages.
func (d *Deployment) proveGroup(ctx context.Context, known []ProbeResult, members []int) {
	id := known[members[0]].Facts.SiteID
	for _, i := range members {
		known[i].Facts.SiteID = ""
	}
	for round := 1; round <= maxRounds && len(members) > 1; round++ {
		at := slices.IndexFunc(members, func(i int) bool { return known[i].Facts.Writable })
		if at < 0 {
			return // no node can change the environment either
		}
		writer := members[at]
		members = slices.Delete(slices.Clone(members), at, at+1)
		for _, i := range d.sharers(ctx, writer, members) {
			known[i].Facts.SiteID = fmt.Sprintf("%s, round %d", id, round)
			known[writer].Facts.SiteID = known[i].Facts.SiteID
			members = slices.DeleteFunc(members, func(m int) bool { return m == i })
		}
	}
}

// sharers returns those of the other nodes that can read the word that writer writes.
func (d *Deployment) sharers(ctx context.Context, writer int, others []int) []int {
	ctx, cancel := context.WithTimeout(ctx, proofLimit)
	defer cancel()
	word, file := rand.Text(), rand.Text()
	release, err := d.nodes[writer].writeWord(ctx, word, file)
	if err != nil {
		return nil
	}
	defer release()
	results := fanout.Run(ctx, others, fanout.Options{Forks: d.fleet.Forks()}, func(ctx context.Context, i int) (string, error) {
		u := d.nodes[i]
		return remote.RunForAnswer(ctx, u.Runner, remote.Command{Argv: []string{"sh", "-c", showWord, "sh", u.facts.SitePackages, file}})
	})
	var shown []int
	for at, i := range others {
		if r := results[at]; r.Err == nil && slices.Contains(strings.Fields(r.Value), word) {
			shown = append(shown, i)
		}
	}
	return shown
}

// writeWord makes the node write a word, and returns once the word is in the file; release
// removes the file.
func (u *nodeRun) writeWord(ctx context.Context, word, file string) (release func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	out, in := io.Pipe()
	written, ended := make(chan struct{}), make(chan error, 1)
	watch := &wordWatch{Answer: remote.NewAnswer(cancel), want: file, seen: written}
	go func() {
		err := u.Runner.Run(ctx, remote.Command{
			Argv:  []string{"sh", "-c", writeWord, "sh", u.facts.SitePackages, file},
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
		return nil, fmt.Errorf("it wrote nothing: %w", err)
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

// findSharedInstallation probes a node that shares its environment with a changed node, its leader, to learn its
// version now. It does not trust the leader's answer for this node.
func (u *nodeRun) findSharedInstallation(ctx context.Context) error {
	leader, before := u.run.nodes[u.plan.Leader], u.change.before
	if leader.Status == report.Refused {
		return &InUseError{cause.Messagef("shares its environment with %s, which was refused: %v", cause.Own(leader.Host.Name), leader.Err)}
	}
	err := u.probe(ctx)
	if err != nil {
		u.change.after, u.change.unseen = nil, true
	} else {
		u.change.before = before
	}
	switch {
	case leader.Status != report.OK:
		return hint.With(cause.Errorf("shares its environment with %s, where the change did not succeed", cause.Own(leader.Host.Name)), "see the error of %s", leader.Host.Name)
	case err != nil:
		return fmt.Errorf("dsbuild could not find out the version in its environment: %w", err)
	}
	u.change.changed = leader.change.changed
	if u.change.recordSHA256 != leader.change.recordSHA256 || u.change.after.String() != leader.change.after.String() {
		return hint.With(cause.Errorf("shares its environment with %s, which has %s now; this node sees %s", cause.Own(leader.Host.Name), leader.change.after.String(), u.change.after.String()),
			"a network file system may show changes late: run the same command again")
	}
	return nil
}
