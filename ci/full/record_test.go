package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func sample() *record {
	return &record{
		part: "inside", when: time.Date(2026, 11, 21, 7, 5, 9, 0, time.UTC), commit: "7cd6131+changes",
		machine: "2 cores, 23.4 GiB of memory, Debian", preparing: 250 * time.Second, wall: 843 * time.Second,
		results: results{
			tests: []outcome{{"github.com/dsbuild/dsbuild/wheel", "TestFullInsideA", "pass", 12.34}},
			facts: []fact{{"peak memory", "63 MiB, 3<5 | 4"}},
		},
	}
}

const section = `### inside

2026-11-21 07:05 UTC, commit 7cd6131+changes; 2 cores, 23.4 GiB of memory, Debian; 14m03s, of which 4m10s were preparation.

| test | result | seconds |
|---|---|---|
| TestFullInsideA (wheel) | pass | 12.3 |

- peak memory: 63 MiB, 3&lt;5 \| 4
`

func TestSave(t *testing.T) {
	file := filepath.Join(t.TempDir(), "testing.md")
	const head, foot = "# Testing\n\n### inside\n\nis a title here too\n\n", "\nThe end.\n"
	later := "### speed\n\nas it was\n\n| a | b |\n"
	if err := os.WriteFile(file, []byte(head+resultsBegin+resultsEnd+foot), 0o644); err != nil {
		t.Fatal(err)
	}
	check := func(want string) {
		t.Helper()
		got, err := os.ReadFile(file)
		if err != nil || string(got) != want {
			t.Errorf("%v, got\n%s", err, got)
		}
	}
	for range 2 { // the second time it replaces its own
		if err := sample().save(file); err != nil {
			t.Fatal(err)
		}
		check(head + resultsBegin + "\n" + section + "\n" + resultsEnd + foot)
	}
	// A part of another time stays, behind those that there are.
	if err := os.WriteFile(file, []byte(head+resultsBegin+"\n"+later+"\n### inside\n\nold\n\n"+resultsEnd+foot), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := sample().save(file); err != nil {
		t.Fatal(err)
	}
	check(head + resultsBegin + "\n" + section + "\n" + later + "\n" + resultsEnd + foot)
	left, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(left) != 1 {
		t.Errorf("%v, left behind: %v", err, left)
	}
}

func TestRewriteNeedsItsMarks(t *testing.T) {
	for _, doc := range []string{"", resultsBegin, resultsEnd, resultsEnd + resultsBegin, resultsBegin + resultsBegin + resultsEnd} {
		if got, err := rewrite(doc, "inside", section); err == nil || !strings.Contains(err.Error(), "docs/testing.md") {
			t.Errorf("%q becomes %q, %v", doc, got, err)
		}
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
	if r.commit == "" || !strings.Contains(r.machine, " cores, ") || time.Since(r.when) > time.Minute {
		t.Errorf("%+v", r)
	}
}
