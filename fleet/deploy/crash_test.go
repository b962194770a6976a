package deploy_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/needs"
)

// crashes has the agent killed before every so-manieth thing that it does to the
// file system, and then the next run while it repairs: so many pairs of points, all
// if negative. It returns how many deaths there were.
func crashes(t *testing.T, each, pairs int) int {
	t.Helper()
	program, err := os.ReadFile("testdata/crash.py")
	if err != nil {
		t.Fatal(err)
	}
	var deaths atomic.Int64
	t.Run("names", func(t *testing.T) {
		for name, crossing := range map[string]string{"by renaming": "False", "across file systems": "True"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				out := agentDo(t, newEnvironment(t, ""), "", fmt.Sprintf("EACH, PAIRS, CROSSING = %d, %d, %s\n%s", each, pairs, crossing, program))
				for line := range strings.Lines(out) {
					if strings.HasPrefix(line, "WRONG ") {
						t.Error(strings.TrimSpace(line))
					} else {
						t.Log(strings.TrimSpace(line))
					}
				}
				for _, m := range regexp.MustCompile(`(\d+) (?:points|pairs)`).FindAllStringSubmatch(out, -1) {
					n, err := strconv.ParseInt(m[1], 10, 64)
					if err != nil {
						t.Fatal(err)
					}
					deaths.Add(n)
				}
			})
		}
	})
	return int(deaths.Load())
}

func TestKilledAgentLeavesTheOldOrTheNewVersion(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	if n, least := crashes(t, 40, 0), 40; n < least {
		t.Errorf("killed only %d times", n)
	}
}

func TestFilesOfAKilledRunGo(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e, opt, _ := withOld(t)
	e.write(t, ".dsbuild/run-1-gpu1/deepspeed.whl", "half a wheel")
	e.write(t, ".dsbuild/kept-1/0", "what was aside")
	e.write(t, ".dsbuild/change.json.part", "{")
	opt.Wheels = load(t, makeWheel(t, t.TempDir(), wheelOptions{version: "0.19.7"}))
	r := run(t, context.Background(), opt)
	if n := r.Nodes[0]; r.Err() != nil || n.Changed || n.Step != "verify" || len(e.leftovers(t)) > 0 {
		t.Errorf("%+v, left %q", n, e.leftovers(t))
	}
}
