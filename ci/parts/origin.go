package parts

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

// origin says when, where and from which commit the results are.
type origin struct {
	when    time.Time
	commit  string // with changes behind it where the tree is not just that
	machine string
	written string // the file that the results are written to; it does not count as a change
}

// changes is said of a commit where the tree is not just that.
const changes = "+changes"

// originNow is the origin of results that are made now.
func originNow(ctx context.Context, written string) (origin, error) {
	o := origin{when: time.Now().UTC(), written: written}
	var err error
	if o.commit, err = describeCommit(ctx, written); err != nil {
		return o, err
	}
	o.machine, err = describeMachine()
	return o, err
}

// close is called when all is done: somebody may have worked here meanwhile.
func (o *origin) close(ctx context.Context) {
	if now, err := describeCommit(ctx, o.written); err != nil || now != o.commit {
		o.commit = strings.TrimSuffix(o.commit, changes) + changes
	}
}

// String is the beginning of a section's first line.
func (o origin) String() string {
	return fmt.Sprintf("%s, commit %s; %s", o.when.Format("2006-01-02 15:04 UTC"), o.commit, o.machine)
}

// describeCommit names the commit that is checked out.
func describeCommit(ctx context.Context, except string) (string, error) {
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
	dirty, err := git("status", "--porcelain", "--", ".", ":!"+except)
	if dirty != "" {
		head += changes
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
