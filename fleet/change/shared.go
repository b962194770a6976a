package change

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fanout"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// Folder is the directory that a change writes to, as one node names it.
type Folder struct {
	Node *fleet.Node
	Path string // need not exist yet; empty for a node without facts
	Type string // of its file system: see node.Facts
	Sees string // what the node has installed there: nodes that share the directory see the same
}

// Sharing is which nodes have a directory in common: on a network file system, or because containers mount one
// directory. It is tried: each node to be changed puts a file with a random name, its word, into a directory that
// only this run knows; afterwards each node lists what it sees there. Nodes that see the same first word share the
// directory. A node can only show a word that it sees, so it cannot make others share.
type Sharing struct {
	run     *Run
	folders []Folder
	ids     []string               // by node: the first word that it sees
	outside map[string][]*Outsider // by that word
	silent  []*fleet.Node          // nodes that did not answer; they may share the directory if its file system can be shared
}

// Outsider is a node outside the run that shares a directory with one of the run.
type Outsider struct {
	Node  *fleet.Node
	Users node.Processes // of the environment, there
}

// FolderUsers is the answer of a program that looks for processes which use what is installed in a directory.
type FolderUsers struct {
	Place   string                    `json:"place"`   // the node's name of the directory
	Current string                    `json:"current"` // the key of Users that counts
	Python  string                    `json:"python"`  // of the current environment; empty without one
	Users   map[string]node.Processes `json:"users"`   // by environment in the directory
}

// AskUsers runs such a program on a node, with the Python of the inventory if the script names none.
func AskUsers(ctx context.Context, n *fleet.Node, script node.Script) (got FolderUsers, err error) {
	script.Python = cmp.Or(script.Python, n.Host.Python)
	err = script.Run(ctx, n.Runner, func(m json.RawMessage) error { return node.Decode(m, &got) })
	if err == nil && got.Place == "" {
		err = errors.New("no output from the node")
	}
	return got, err
}

const (
	// trialLimit is the timeout of one command of a trial.
	trialLimit = 30 * time.Second
	// outsideLimit is how long dsbuild tries to reach all nodes outside the run together.
	outsideLimit = 5 * time.Second
	// removeLimit is the timeout for the removal of all words.
	removeLimit = 10 * time.Second
	// latePause is how much later a node lists a network file system again that has shown it no other word.
	latePause = time.Second
	// maxTrials is how often a trial is repeated if another run removed its words.
	maxTrials = 3
	// trialPrefix starts the names of the directories for words. Agents remove old ones (changes.py).
	trialPrefix = ".dsbuild-try-"
)

// The scripts of a trial take the directory, or a directory that is not there yet: then its next parent counts; then the
// name of the directory for words, and the node's word. The first node to make it notes the modification times of
// the directory before and after; the last one restores the time, unless the directory has been changed since.
const (
	findTop = `export LC_ALL=C TZ=UTC0
umask 022
top=$1
while [ ! -d "$top" ]; do top=${top%/*}; [ -n "$top" ] || top=/; done
dir=$top/$2
remove() {
	{ IFS= read -r was; IFS= read -r then; } 2>/dev/null <"$dir/.times"
	now=$(stat -L -c %y "$top" 2>/dev/null)
	rm -rf -- "$dir"
	[ -z "$was" ] || [ "$now" != "$then" ] || touch -c -d "$was" "$top" 2>/dev/null || :
}
`
	writeWord = findTop + `was=$(stat -L -c %y "$top" 2>/dev/null)
if mkdir -- "$dir" 2>/dev/null; then
	printf '%s\n' "$was" "$(stat -L -c %y "$top" 2>/dev/null)" >"$dir/.times"
fi
: >"$dir/$3"`
	// listWords prints the first words, and the name of the directory if the node's own word is not there. With a word
	// as $4 it removes that if there is no other.
	listWords = findTop + `all=$(ls -- "$dir" 2>/dev/null)
printf '%s\n' "$all" | head -n 8
[ -z "$3" ] || [ -e "$dir/$3" ] || echo "$2"
[ -z "$4" ] || [ "$all" != "$4" ] || remove`
	removeWords = findTop + `[ ! -d "$dir" ] || remove`
)

// trial is the part of one node in a trial.
type trial struct {
	Folder
	at      int
	word    string // that it leaves; empty for a node that only lists
	first   string // the first word that it sees
	lost    bool   // its own word was removed
	removed bool   // it has removed all words
	late    bool   // another node may see the word later, or it another's
}

// FindSharing finds out which nodes share the directory that the plan changes on some. A node that fails becomes absent
// from the plan. Nodes outside the run answer the program ask, only if the file system can be shared.
func (r *Run) FindSharing(ctx context.Context, plan Decisions, folders []Folder, ask node.Script) *Sharing {
	s := &Sharing{run: r, folders: folders, ids: make([]string, len(folders)), outside: map[string][]*Outsider{}}
	var writers, readers []*trial
	seen := map[string]bool{}
	shareable := 0
	for i, f := range folders {
		if plan[i].changes() && f.Path != "" {
			t := &trial{Folder: f, at: i, word: rand.Text()}
			writers, seen[f.Sees] = append(writers, t), true
			if node.CanBeShared(f.Type) {
				shareable++
			}
		}
	}
	if len(writers) == 0 {
		return s
	}
	var outside []*fleet.Node
	if shareable > 0 {
		outside = r.Fleet.Outside()
	}
	for i, f := range folders {
		switch {
		case f.Node.Err != nil && shareable > 0:
			s.silent = append(s.silent, f.Node)
		case f.Node.Err == nil && f.Path != "" && !plan[i].changes() && seen[f.Sees]:
			readers = append(readers, &trial{Folder: f, at: i})
		}
	}
	if r.Rules.DryRun {
		s.silent = append(s.silent, outside...)
		return s
	}
	for _, t := range writers {
		t.late = node.CanBeShared(t.Type) && shareable > 1
	}
	for _, t := range readers {
		t.late = node.CanBeShared(t.Type) && shareable > 0
	}
	if len(writers)+len(readers)+len(outside) > 1 {
		defer r.Fleet.Hide()() // it takes no time worth a display
		again := true
		for n := 0; n < maxTrials && again; n++ {
			again = s.try(ctx, writers, readers, outside, ask)
		}
	}
	for _, t := range slices.Concat(writers, readers) {
		if t.lost && t.Node.Err == nil {
			t.Node.Status = report.Failed
			t.Node.Err = fault.WithHint(errors.New("another run removed the file that shows which nodes share the directory"),
				"rerun once the other run has ended")
		}
		if t.Node.Err != nil {
			plan[t.at].SetAbsent(t.Node.Err)
			continue
		}
		s.ids[t.at] = t.first
	}
	return s
}

// changes reports whether the plan changes the node itself.
func (p *Decision) changes() bool { return p.Action == Install || p.Action == Rollback }

// try makes one trial. again reports that another run has removed words.
func (s *Sharing) try(
	ctx context.Context, writers, readers []*trial, outside []*fleet.Node, ask node.Script,
) (again bool) {
	dir, words := trialPrefix+strings.ToLower(rand.Text()), map[string]bool{}
	for _, t := range writers {
		t.first, t.lost, t.removed = "", false, false
	}
	defer s.removeAll(ctx, dir, writers)
	s.each(ctx, writers, func(ctx context.Context, t *trial) error {
		_, err := shell(ctx, t.Node, writeWord, t.Path, dir, t.word)
		if err != nil {
			return fmt.Errorf("cannot write to %s: %w", node.QuotePath(t.Path), err)
		}
		return nil
	})
	for _, t := range writers {
		if t.Node.Err == nil { // else the word may appear later
			words[t.word] = true
		}
	}
	list := func(last bool) func(context.Context, *trial) error {
		return func(ctx context.Context, t *trial) error { return t.list(ctx, dir, words, last || !t.late) }
	}
	s.each(ctx, readers, list(false))
	s.askOutside(ctx, dir, words, outside, ask)
	s.each(ctx, writers, list(false))
	isLate := func(t *trial) bool { return t.late && (t.first == "" || t.first == t.word) && !t.lost }
	if slices.ContainsFunc(slices.Concat(writers, readers), isLate) {
		select {
		case <-ctx.Done():
		case <-time.After(latePause):
		}
		s.each(ctx, only(readers, isLate), list(true))
		s.each(ctx, only(writers, isLate), list(true))
	}
	return slices.ContainsFunc(writers, func(t *trial) bool { return t.lost }) && ctx.Err() == nil
}

// only returns the trials for which is holds.
func only(trials []*trial, is func(*trial) bool) []*trial {
	return slices.DeleteFunc(slices.Clone(trials), func(t *trial) bool { return !is(t) })
}

// each takes nodes that have not failed through one step.
func (s *Sharing) each(ctx context.Context, trials []*trial, do func(context.Context, *trial) error) {
	var tasks []fleet.Task
	for _, t := range trials {
		if t.Node.Err == nil {
			tasks = append(tasks, fleet.Task{Node: t.Node, Steps: []fleet.Step{{
				Name: "fit", Limit: s.run.Fleet.Limit(trialLimit), ReadOnly: true,
				Do: func(ctx context.Context) error { return do(ctx, t) },
			}}})
		}
	}
	s.run.Fleet.RunSteps(ctx, tasks, nil)
}

// list sets the first word that the node sees. A last look removes the node's own word if it is the only one.
func (t *trial) list(ctx context.Context, dir string, words map[string]bool, last bool) error {
	alone := ""
	if last {
		alone = t.word
	}
	shown, err := shell(ctx, t.Node, listWords, t.Path, dir, t.word, alone)
	if err != nil {
		return fmt.Errorf("cannot list %s: %w", node.QuotePath(t.Path), err)
	}
	t.first = firstOf(shown, words)
	t.lost = slices.Contains(shown, dir)
	t.removed = last && t.word != "" && t.first == t.word && len(shown) == 1
	return nil
}

// firstOf returns the first line that is a word.
func firstOf(shown []string, words map[string]bool) string {
	if at := slices.IndexFunc(shown, func(s string) bool { return words[s] }); at >= 0 {
		return shown[at]
	}
	return ""
}

// removeAll removes the directories for words, also after ctx has ended: one node does it for all that share it.
func (s *Sharing) removeAll(ctx context.Context, dir string, writers []*trial) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeLimit)
	defer cancel()
	var left []*trial
	done := map[string]bool{}
	for _, t := range writers {
		if t.Node.Runner == nil || t.removed || t.first != "" && done[t.first] {
			continue
		}
		done[t.first] = true
		left = append(left, t)
	}
	fanout.Run(ctx, left, fanout.Options{Forks: s.run.Fleet.Forks()}, func(ctx context.Context, t *trial) (struct{}, error) {
		_, err := shell(ctx, t.Node, removeWords, t.Path, dir)
		return struct{}{}, err // the next run removes it
	})
}

// askOutside finds those nodes outside the run that see a word.
func (s *Sharing) askOutside(
	ctx context.Context, dir string, words map[string]bool, nodes []*fleet.Node, ask node.Script,
) {
	s.outside, s.silent = map[string][]*Outsider{}, slices.DeleteFunc(s.silent, func(n *fleet.Node) bool {
		return slices.Contains(nodes, n) // of an earlier trial
	})
	seen := make([]*Outsider, len(nodes))
	ids := make([]string, len(nodes))
	errs := s.run.Fleet.Ask(ctx, nodes, outsideLimit, func(ctx context.Context, i int) error {
		got, err := AskUsers(ctx, nodes[i], ask)
		if err != nil {
			return err
		}
		shown, err := shell(ctx, nodes[i], listWords, got.Place, dir, "", "")
		nodes[i].JobsOf = got.Python
		ids[i], seen[i] = firstOf(shown, words), &Outsider{nodes[i], got.Users[got.Current]}
		return err
	})
	for i, n := range nodes {
		switch {
		case errs[i] != nil:
			s.silent = append(s.silent, n)
			n.Disconnect()
		case ids[i] == "":
			n.Disconnect()
		default: // stays connected, for AwaitFree
			s.outside[ids[i]] = append(s.outside[ids[i]], seen[i])
		}
	}
}

// shell runs a script on a node and returns the words that it prints. The error holds what the script printed on standard
// error. shell replaces a connection that was idle for too long.
func shell(ctx context.Context, n *fleet.Node, script string, args ...string) ([]string, error) {
	var said *remote.Tail
	run := func() (string, error) {
		said = &remote.Tail{Most: 64 << 10}
		return remote.RunForAnswer(ctx, n.Runner, remote.Command{Argv: append([]string{"sh", "-c", script, "sh"}, args...), Stderr: said})
	}
	out, err := run()
	if errors.Is(err, remote.ErrLost) && n.Reconnect(ctx) == nil {
		out, err = run()
	}
	if errors.As(err, new(*remote.ExitError)) && said.String() != "" {
		err = fmt.Errorf("%w (%w)", node.NewNodeError(said.String()), err)
	}
	return strings.Fields(out), err
}

// ID is equal, and not empty, for nodes that share the directory.
func (s *Sharing) ID(at int) string { return s.ids[at] }

// Explain adds to a plan, in which nodes that share the directory are grouped, what concerns nodes outside the run. what is
// the thing that they share.
func (s *Sharing) Explain(plan Decisions, what string) {
	for i, p := range plan {
		f := s.folders[i]
		if !p.changes() {
			continue
		}
		p.outside = s.outside[s.ids[i]]
		if names := namesOf(lists.Map(p.outside, func(o *Outsider) *fleet.Node { return o.Node })); len(names) > 0 {
			p.Notes = append(p.Notes, fmt.Sprintf("also changes %s, which %s %s", ui.FoldShort(names), shares(names), what))
		}
		switch {
		case !node.CanBeShared(f.Type) || len(s.folders)+len(s.silent) < 2:
		case s.run.Rules.DryRun:
			p.Notes = append(p.Notes, fmt.Sprintf("on %s: other nodes may share it; a dry run does not test that", f.Type))
		case len(s.silent) > 0:
			p.Notes = append(p.Notes, fmt.Sprintf("on %s: cannot ask %s, which may use it", f.Type, ui.FoldShort(namesOf(s.silent))))
		}
	}
}

// namesOf returns the names of nodes.
func namesOf(nodes []*fleet.Node) []string {
	return lists.Map(nodes, func(n *fleet.Node) string { return n.Host.Name })
}

// shares is the verb for names of nodes.
func shares(names []string) string {
	if len(names) == 1 {
		return "shares"
	}
	return "share"
}

// Others returns the other nodes that share the directory with a node, or may share it because they did not answer.
func (s *Sharing) Others(at int) []inventory.Host {
	var hosts []inventory.Host
	for i, id := range s.ids {
		if i != at && id != "" && id == s.ids[at] {
			hosts = append(hosts, s.folders[i].Node.Host)
		}
	}
	for _, o := range s.outside[s.ids[at]] {
		hosts = append(hosts, o.Node.Host)
	}
	if node.CanBeShared(s.folders[at].Type) {
		hosts = append(hosts, lists.Map(s.silent, func(n *fleet.Node) inventory.Host { return n.Host })...)
	}
	return hosts
}
