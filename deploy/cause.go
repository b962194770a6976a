package deploy

import (
	"cmp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// Cause is why some nodes are not ok: the same went wrong on all of them, at
// the same step. Their words may differ in what each node has for itself, as
// ui.Likeness has it.
type Cause struct {
	Status Status   `json:"status"`
	Step   string   `json:"step"`  // "" of nodes on which nothing was done
	Node   string   `json:"node"`  // the first of them: error, hint and log are its own
	Error  string   `json:"error"` // in the words of that node
	Hint   string   `json:"hint"`
	Log    string   `json:"log,omitempty"` // of that node
	Nodes  []string `json:"nodes"`

	// Said is Error with each thing that the node differs in on a line of its own.
	Said string `json:"-"`
	// Alike says that all nodes said it in the very same words.
	Alike bool `json:"-"`
}

// Causes puts together the nodes that are not ok for one reason. What most
// suffer from comes first, what was skipped only because of others last.
func Causes(nodes []NodeReport) []Cause {
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name
	}
	like := ui.NewLikeness(names)
	causes := []Cause{}
	place := map[string]int{}
	for _, n := range nodes {
		if n.Error == "" {
			continue
		}
		key := n.causeKey(like)
		at, seen := place[key]
		if !seen {
			at, place[key] = len(causes), len(causes)
			causes = append(causes, Cause{Status: n.Status, Step: n.Step, Node: n.Name, Error: n.Error, Hint: n.Hint, Log: n.Log, Said: n.Complaint(), Alike: true})
			if n.Status == Skipped {
				causes[at].Step = "" // no step of it went wrong
			}
		}
		c := &causes[at]
		c.Nodes = append(c.Nodes, n.Name)
		c.Alike = c.Alike && c.Error == n.Error && c.Hint == n.Hint
	}
	slices.SortStableFunc(causes, func(a, b Cause) int {
		return cmp.Or(cmp.Compare(last(a), last(b)), -cmp.Compare(len(a.Nodes), len(b.Nodes)), cmp.Compare(gravity(a.Status), gravity(b.Status)))
	})
	return causes
}

// Why is why nodes are not ok. Of a report that was put together by hand the
// causes are looked for now.
func (r *Report) Why() []Cause {
	if r.Causes == nil {
		return Causes(r.Nodes)
	}
	return r.Causes
}

// causeKey is equal for nodes that suffer from the same. What became of the
// node after it had failed is told apart, but not to which version it went back.
func (n NodeReport) causeKey(like ui.Likeness) string {
	own := append([]string{n.Name}, n.aka...)
	step := n.Step
	if n.Status == Skipped {
		step = ""
	}
	after := n.aftermath
	if n.Before != nil {
		after = strings.ReplaceAll(after, n.Before.Version, "")
	}
	why := strings.TrimSuffix(n.Error, n.aftermath)
	return strings.Join([]string{string(n.Status), step, like.Key(why, own...), like.Key(after, own...), like.Key(n.Hint, own...)}, cellSep)
}

// Complaint is what is wrong with a node: what it differs in is a line each.
func (n NodeReport) Complaint() string {
	rest, ok := strings.CutPrefix(n.Error, strings.Join(n.Differs, "; "))
	if !ok || len(n.Differs) < 2 {
		return n.Error
	}
	return strings.Join(n.Differs, "\n") + strings.Replace(rest, "; ", "\n", 1)
}

// last tells what follows from the failures of others.
func last(c Cause) int {
	if c.Status == Skipped {
		return 1
	}
	return 0
}

// gravity orders statuses: what needs somebody goes first.
func gravity(s Status) int {
	return slices.Index([]Status{Failed, Unreachable, Refused, Differs, Skipped}, s)
}
