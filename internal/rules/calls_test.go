package rules

import (
	"path"
	"slices"
	"testing"
)

// TestControlRunsDown: package change calls no function of the packages above it. They give it values; the functions that they
// give it are the steps of a node, which package fleet calls. Three functions take one more: PutStep and TidyStep call it again after
// a lost connection, or only where it is needed, and Print for the cells of a table.
func TestControlRunsDown(t *testing.T) {
	p := load(t)
	for f, n := range p.calls.Nodes {
		if f == nil || path.Dir(p.file(f)) != "fleet/change" || slices.Contains([]string{"PutStep", "TidyStep", "Print"}, outermost(f).Name()) {
			continue
		}
		for _, e := range n.Out {
			callee := e.Callee
			if callee.Func.Synthetic != "" && len(callee.Out) == 1 { // a method as a value
				callee = callee.Out[0].Callee
			}
			switch path.Dir(p.file(callee.Func)) {
			case "fleet/deploy", "fleet/envdeploy", "fleet/ship", "cmd/dsbuild":
				t.Errorf("%s calls %s", f, callee.Func)
			}
		}
	}
}
