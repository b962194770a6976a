package change_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node"
)

// A rollback undoes the later of two runs, within one second too, where their names say nothing of their order.
func TestUndoesTheLaterRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, between := range []time.Duration{3 * time.Millisecond, 7 * time.Millisecond, 90 * time.Millisecond, 400 * time.Millisecond, time.Minute} {
			for _, names := range [][2]string{{"20261130T001558-bbbbbb", "20261130T001558-aaaaaa"}, {"20261130T001558-aaaaaa", "20261130T001558-bbbbbb"}} {
				var nodes []change.LastChange
				for _, name := range names {
					var last node.LastChange
					if err := json.Unmarshal(fmt.Appendf(nil, `{"runs": [{"run": %q, "at": %q, "by": "me@login1"}]}`, name, node.Now()), &last); err != nil {
						t.Fatal(err)
					}
					nodes = append(nodes, change.LastChange{LastChange: &last})
					time.Sleep(between)
				}
				u, err := change.NewUndoing(nodes, "", "version")
				if err != nil || u.Run() == nil || u.Run().ID != names[1] {
					t.Errorf("%s later: %v, %v; want %s", between, u.Run(), err, names[1])
				}
			}
		}
	})
}
