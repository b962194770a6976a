package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// resultsFile holds the last results of each part, between two marks.
const (
	resultsFile  = "docs/testing.md"
	resultsBegin = "<!-- results of make test-full: written by ci/full -->\n"
	resultsEnd   = "<!-- end -->\n"
)

// record is what is written down about a part: what ran, where and when.
type record struct {
	part      string
	when      time.Time
	commit    string // as commit names it
	machine   string
	preparing time.Duration
	wall      time.Duration // the preparation included
	results   results
}

// newRecord notes what must be known before the tests run, and finds out
// whether there is a place for the results before an hour is spent on them.
func newRecord(ctx context.Context, name string) (*record, error) {
	r := &record{part: name, when: time.Now().UTC()}
	doc, err := os.ReadFile(resultsFile)
	if err != nil {
		return nil, hint.With(err, "run make test-full in the root of a checkout")
	}
	if _, err = rewrite(string(doc), name, ""); err != nil {
		return nil, err
	}
	if r.commit, err = commit(ctx); err != nil {
		return nil, err
	}
	r.machine, err = machine()
	return r, err
}

// changes is said of a commit where the tree is not just that.
const changes = "+changes"

// commit names what is checked out. The results of other parts change nothing
// that is proved.
func commit(ctx context.Context) (string, error) {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", args...).Output()
		if err != nil {
			return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
		}
		return strings.TrimSpace(string(out)), nil
	}
	head, err := git("rev-parse", "--short", "HEAD")
	if err != nil {
		return "", err
	}
	dirty, err := git("status", "--porcelain", "--", ".", ":!"+resultsFile)
	if dirty != "" {
		head += changes
	}
	return head, err
}

var (
	memTotal   = regexp.MustCompile(`(?m)^MemTotal:\s+(\d+) kB$`)
	prettyName = regexp.MustCompile(`(?m)^PRETTY_NAME="?([^"\n]*)"?$`)
)

// machine describes where this runs.
func machine() (string, error) {
	mem, err := find("/proc/meminfo", memTotal)
	if err != nil {
		return "", err
	}
	kB, err := strconv.ParseInt(mem, 10, 64)
	if err != nil {
		return "", err
	}
	system, err := find("/etc/os-release", prettyName)
	return fmt.Sprintf("%d cores, %s of memory, %s", runtime.NumCPU(), ui.Size(kB<<10), system), err
}

func find(file string, pattern *regexp.Regexp) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	m := pattern.FindSubmatch(text)
	if m == nil {
		return "", fmt.Errorf("%s has no line %s", file, pattern)
	}
	return string(m[1]), nil
}

// String is the part's section of the document.
func (r *record) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "### %s\n\n%s, commit %s; %s; %s, of which %s were preparation.\n\n", r.part,
		r.when.Format("2006-01-02 15:04 UTC"), r.commit, r.machine, ui.Duration(r.wall), ui.Duration(r.preparing))
	fmt.Fprint(&out, "| test | result | seconds |\n|---|---|---|\n")
	for _, t := range r.results.tests {
		fmt.Fprintf(&out, "| %s | %s | %.1f |\n", markdown(id{t.pkg, t.name}.String()), t.action, t.seconds)
	}
	if len(r.results.facts) > 0 {
		fmt.Fprintln(&out)
	}
	for _, f := range r.results.facts {
		fmt.Fprintf(&out, "- %s: %s\n", markdown(f.name), markdown(f.value))
	}
	return out.String()
}

// markdown is text that ends no table cell and no mark.
func markdown(text string) string {
	return strings.NewReplacer("<", "&lt;", "|", `\|`).Replace(text)
}

// save writes the section into the document, whole or not at all.
func (r *record) save(file string) error {
	doc, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text, err := rewrite(string(doc), r.part, r.String())
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".testing-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = bytes.NewBufferString(text).WriteTo(tmp)
	if err = errors.Join(err, tmp.Chmod(0o644), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), file)
}

// rewrite puts the section of a part in its place; the others stay as they are.
func rewrite(doc, name, section string) (string, error) {
	before, rest, found := strings.Cut(doc, resultsBegin)
	old, after, closed := strings.Cut(rest, resultsEnd)
	if !found || !closed || strings.Contains(rest, resultsBegin) {
		return "", fmt.Errorf("%s: the results belong between one line %q and one line %q", resultsFile,
			strings.TrimSpace(resultsBegin), strings.TrimSpace(resultsEnd))
	}
	sections := map[string]string{}
	var names []string
	for _, s := range strings.Split("\n"+old, "\n### ")[1:] {
		title, _, _ := strings.Cut(s, "\n")
		sections[title] = "### " + strings.TrimSpace(s) + "\n"
		names = append(names, title)
	}
	if !slices.Contains(names, name) {
		names = append(names, name)
	}
	sections[name] = section
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	var out strings.Builder
	for _, n := range names {
		out.WriteString("\n" + sections[n])
	}
	return before + resultsBegin + out.String() + "\n" + resultsEnd + after, nil
}

// rank is where a part stands in the list; what is not in it comes last.
func rank(name string) int {
	all := parts()
	if i := slices.IndexFunc(all, func(p part) bool { return p.name == name }); i >= 0 {
		return i
	}
	return len(all)
}
