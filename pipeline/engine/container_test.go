package engine

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A container that does not stay up is told at the third look that shows it. One that is slow to come, or was
// restarted before, is not.
func TestWatch(t *testing.T) {
	for name, c := range map[string]struct {
		address string
		states  []string // at each look; the last one stays
		want    string
	}{
		"restarts":  {"image+docker://r/e:1", []string{"", "running 0", "running 1", "running 3", "restarting 7"}, "container dagger-engine-1 does not stay up: restarting, 7 restarts"},
		"waits":     {"image+docker://r/e:1", []string{"restarting 9"}, "restarting, 9 restarts"},
		"has ended": {"container+docker://mine", []string{"exited 0"}, "container mine does not stay up: exited, 0 restarts"},
		"starts":    {"image+docker://r/e:1", []string{"", "exited 4", "exited 4", "exited 4", "created 4", "running 4"}, ""},
		"restarted": {"image+docker://r/e:1", []string{"running 4", "restarting 5", "running 5"}, ""},
		"elsewhere": {"tcp://host:1", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			looks := filepath.Join(t.TempDir(), "looks")
			fakeClient(t, "docker", `echo >>'`+looks+`'
n=$(wc -l <'`+looks+`'); set -- '`+strings.Join(c.states, "' '")+`'
[ "$n" -le $# ] || n=$#
shift $((n - 1)); [ -n "$1" ] && echo "$1"`)
			limit := 30 * time.Second
			if c.want == "" {
				limit = time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			err := Engine{Address: c.address}.Watch(ctx, time.Millisecond)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
