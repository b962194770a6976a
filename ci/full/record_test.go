package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/ci/ledger"
)

func TestSection(t *testing.T) {
	r := &record{
		part: "inside", preparing: 250 * time.Second, wall: 843 * time.Second,
		origin: ledger.Origin{When: time.Date(2026, 11, 21, 7, 5, 9, 0, time.UTC), Commit: "7cd6131+changes", Machine: "2 cores, 23.4 GiB of memory, Debian"},
		results: results{
			tests: []outcome{{"github.com/dsbuild/dsbuild/wheel", "TestFullInsideA", "pass", 12.34}},
			facts: []fact{{"peak memory", "63 MiB, 3<5 | 4"}},
		},
	}
	const want = `### inside

2026-11-21 07:05 UTC, commit 7cd6131+changes; 2 cores, 23.4 GiB of memory, Debian; 14m03s, of which 4m10s were preparation.

| test | result | seconds |
|---|---|---|
| TestFullInsideA (wheel) | pass | 12.3 |

- peak memory: 63 MiB, 3&lt;5 \| 4
`
	if got := r.String(); got != want {
		t.Errorf("got\n%s", got)
	}
}

// The document of this checkout can take results.
func TestNewRecord(t *testing.T) {
	t.Chdir("../..")
	if _, err := os.Stat(".git"); err != nil {
		t.Skip("not a checkout of git")
	}
	r, err := newRecord(t.Context(), "inside")
	if err != nil {
		t.Fatal(err)
	}
	if r.origin.Commit == "" || !strings.Contains(r.origin.Machine, " cores, ") || time.Since(r.origin.When) > time.Minute {
		t.Errorf("%+v", r)
	}
}
