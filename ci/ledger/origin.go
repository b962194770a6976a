package ledger

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// Origin says when, of what and where results are.
type Origin struct {
	When    time.Time
	Commit  string // with Changes behind it where the tree is not just that
	Machine string
	written []string
}

// Changes is said of a commit where the tree is not just that.
const Changes = "+changes"

// Now is the origin of results that are made now. The files that
// results are written to change nothing about that.
func Now(ctx context.Context, written ...string) (Origin, error) {
	o := Origin{When: time.Now().UTC(), written: written}
	var err error
	if o.Commit, err = describeCommit(ctx, written); err != nil {
		return o, err
	}
	o.Machine, err = describeMachine()
	return o, err
}

// Close is called when all is done: somebody may have worked here meanwhile.
func (o *Origin) Close(ctx context.Context) {
	if now, err := describeCommit(ctx, o.written); err != nil || now != o.Commit {
		o.Commit = strings.TrimSuffix(o.Commit, Changes) + Changes
	}
}

// String is the beginning of a section's first line.
func (o Origin) String() string {
	return fmt.Sprintf("%s, commit %s; %s", o.When.Format("2006-01-02 15:04 UTC"), o.Commit, o.Machine)
}

// describeCommit names the commit that is checked out.
func describeCommit(ctx context.Context, except []string) (string, error) {
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
	status := []string{"status", "--porcelain", "--", "."}
	for _, file := range except {
		status = append(status, ":!"+file)
	}
	dirty, err := git(status...)
	if dirty != "" {
		head += Changes
	}
	return head, err
}

var (
	memTotal   = regexp.MustCompile(`(?m)^MemTotal:\s+(\d+) kB$`)
	prettyName = regexp.MustCompile(`(?m)^PRETTY_NAME="?([^"\n]*)"?$`)
)

// describeMachine describes where this runs.
func describeMachine() (string, error) {
	mem, err := findInFile("/proc/meminfo", memTotal)
	if err != nil {
		return "", err
	}
	kB, err := strconv.ParseInt(mem, 10, 64)
	if err != nil {
		return "", err
	}
	system, err := findInFile("/etc/os-release", prettyName)
	return fmt.Sprintf("%d cores, %s of memory, %s", runtime.NumCPU(), ui.Size(kB<<10), system), err
}

func findInFile(file string, pattern *regexp.Regexp) (string, error) {
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
