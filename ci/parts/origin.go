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

// origin describes the date, commit and machine of results.
type origin struct {
	when    time.Time
	commit  string // ends in changes if the tree differs from the commit
	machine string
	written string // the file that receives the results; it does not count as a change
}

// changes follows a commit from which the tree differs.
const changes = "+changes"

// originNow returns the origin of results that are made now.
func originNow(ctx context.Context, written string) (origin, error) {
	o := origin{when: time.Now().UTC(), written: written}
	var err error
	if o.commit, err = describeCommit(ctx, written); err != nil {
		return o, err
	}
	o.machine, err = describeMachine()
	return o, err
}

// close updates the origin at the end: somebody may have changed the tree meanwhile.
func (o *origin) close(ctx context.Context) {
	if now, err := describeCommit(ctx, o.written); err != nil || now != o.commit {
		o.commit = strings.TrimSuffix(o.commit, changes) + changes
	}
}

// String is the beginning of a section's first line.
func (o origin) String() string {
	return fmt.Sprintf("%s, commit %s; %s", o.when.Format("2006-01-02 15:04 UTC"), o.commit, o.machine)
}

// describeCommit names the commit in the checkout.
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

// describeMachine describes this machine.
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
