//go:build linux

package docker

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Nothing of a daemon is left when its test ends.
func TestNothingIsLeft(t *testing.T) {
	var d *Daemon
	t.Run("up", func(t *testing.T) { d = Docker(t, Options{}) })
	if d == nil {
		t.Skip("there was no daemon")
	}
	if _, err := os.Stat(d.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", d.dir, err)
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*/" + d.cgroup())
	if err != nil || len(groups) > 0 {
		t.Errorf("control groups %v, %v", groups, err)
	}
}
