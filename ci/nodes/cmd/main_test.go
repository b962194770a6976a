//go:build linux

package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/ci/nodes"
)

func TestUpListDown(t *testing.T) {
	dir := t.TempDir()
	call := func(args ...string) string {
		t.Helper()
		var out bytes.Buffer
		if err := runCommand(t.Context(), args, &out, io.Discard); err != nil {
			if strings.Contains(err.Error(), nodes.ErrNoSSHD.Error()) && os.Getenv("CI") != "true" {
				t.Skip(err)
			}
			t.Fatalf("%v: %v", args, err)
		}
		return out.String()
	}
	t.Cleanup(func() { runCommand(t.Context(), []string{"down", "--dir", dir}, io.Discard, io.Discard) })
	up := call("up", "--dir", dir, "--count", "2", "--env", "none", "--env", "2=fake-torch")
	if strings.Count(up, "up (process ") != 2 || !strings.Contains(up, "fake-torch") || !strings.Contains(up, "127.0.1.2:") {
		t.Errorf("up says\n%s", up)
	}
	if got := call("list", "--dir", dir); got != up {
		t.Errorf("list says\n%s", got)
	}
	call("down", "--dir", dir)
	if got := call("list", "--dir", dir); strings.Count(got, " down") != 2 {
		t.Errorf("after down, list says\n%s", got)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"sideways"}, {"up", "x"}, {"up", "--env", "y"}, {"up", "--env", "0=bare"}, {"down", "--dir", t.TempDir()}} {
		if err := runCommand(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}
