package report

import (
	"cmp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// Cause is one failure that several nodes share, at the same step. The error texts may differ in
// the details of each node, such as its address.
type Cause struct {
	Status Status   `json:"status"`
	Step   string   `json:"step"`  // "" if no step failed: the nodes were skipped
	Node   string   `json:"node"`  // the first of Nodes: Error, Hint and Log are from it
	Error  string   `json:"error"` // as that node reported it
	Hint   string   `json:"hint"`
	Log    string   `json:"log,omitempty"` // of that node
	Nodes  []string `json:"nodes"`

	// Said is Error with each difference of the node on a separate line.
	Said string `json:"-"`
	// Alike is true if all nodes reported exactly the same error and hint.
	Alike bool `json:"-"`
}

// EditHints rewrites every hint. nodes are those with it, as a value of --limit.
func (r *Report) EditHints(edit func(hint, nodes string) string) {
	for i := range r.Causes { // before the hints of nodes, with which it compares
		c := &r.Causes[i]
		var with []string
		for _, n := range r.Nodes {
			if n.Hint == c.Hint && slices.Contains(c.Nodes, n.Name) {
				with = append(with, n.Name)
			}
		}
		c.Hint = ui.OneLine(edit(c.Hint, ui.FoldNames(with)))
	}
	for i := range r.Nodes {
		r.Nodes[i].Hint = ui.OneLine(edit(r.Nodes[i].Hint, r.Nodes[i].Name))
	}
	if r.Gate != nil {
		r.Gate.Hint = ui.OneLine(edit(r.Gate.Hint, ""))
	}
}

// Causes groups the nodes that are not ok by cause. The cause with the most nodes comes first;
// nodes skipped because of others come last.
func Causes(nodes []Node) []Cause {
	causes := []Cause{}
	place := map[string]int{}
	for _, n := range nodes {
		if n.Error == "" {
			continue
		}
		// The key is equal for nodes with the same status, step and cause.
		step := n.Step
		if n.Status == Skipped {
			step = ""
		}
		key := strings.Join([]string{string(n.Status), step, cmp.Or(n.CauseText, n.Error)}, cellSep)
		at, seen := place[key]
		if !seen {
			at, place[key] = len(causes), len(causes)
			causes = append(causes, Cause{
				Status: n.Status, Step: n.Step, Node: n.Name, Error: n.Error, Hint: n.Hint,
				Log: n.Log, Said: n.Complaint(), Alike: true,
			})
			if n.Status == Skipped {
				causes[at].Step = "" // no step failed on these nodes
			}
		}
		c := &causes[at]
		c.Nodes = append(c.Nodes, n.Name)
		c.Alike = c.Alike && c.Error == n.Error && c.Hint == n.Hint
	}
	slices.SortStableFunc(causes, func(a, b Cause) int {
		return cmp.Or(
			cmp.Compare(last(a), last(b)),
			-cmp.Compare(len(a.Nodes), len(b.Nodes)),
			cmp.Compare(gravity(a.Status), gravity(b.Status)),
		)
	})
	return causes
}

// Why returns the causes of the report. A report that a caller assembled has none yet; Why
// computes them.
func (r *Report) Why() []Cause {
	if r.Causes == nil {
		return Causes(r.Nodes)
	}
	return r.Causes
}

// Complaint is the node's error, with each difference on a separate line.
func (n Node) Complaint() string {
	rest, ok := strings.CutPrefix(n.Error, strings.Join(n.Differs, "; "))
	if !ok || len(n.Differs) < 2 {
		return n.Error
	}
	return strings.Join(n.Differs, "\n") + strings.Replace(rest, "; ", "\n", 1)
}

// last returns 1 for causes that only follow from the failures of others, so that they sort last;
// else 0.
func last(c Cause) int {
	if c.Status == Skipped {
		return 1
	}
	return 0
}

// gravity orders statuses: those that need the user's attention come first.
func gravity(s Status) int {
	return slices.Index([]Status{Failed, Unreachable, Refused, Differs, Skipped}, s)
}
