//go:build full && linux

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
)

// slowLinks are four real OpenSSH nodes with links of their own, and a file.
type slowLinks struct {
	*nodes.Fleet
	file string
}

func newSlowLinks(t *testing.T, size int64) slowLinks {
	t.Helper()
	f := nodestest.Up(t, nodes.Options{Count: 4, Env: nodes.FakeTorch, Networks: true})
	l := slowLinks{f, filepath.Join(t.TempDir(), "file.bin")}
	ws := &workspace{dir: filepath.Dir(l.file)}
	if err := (fleetRaces{ws}).makeFile("file.bin", size); err != nil {
		t.Fatal(err)
	}
	return l
}

// put starts the program that puts the file on all nodes. wait returns how many copies it sent.
func (l slowLinks) put(t *testing.T) (wait func() int) {
	t.Helper()
	argv := append(l.EnterController(), os.Args[0], putWord, l.Inventory, strconv.Itoa(len(l.Nodes)), l.file, filepath.Join(l.Dir, "HOST", "home"), "1")
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Dir, cmd.Stderr = t.TempDir(), t.Output()
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() int {
		var got putResult
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		} else if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
			t.Error(err)
		}
		return got.Sends
	}
}

// The controller's own link is slow: the first node is not to blame, and one copy is sent.
func TestFullRelaySlowLinkOfTheController(t *testing.T) {
	l := newSlowLinks(t, 20<<20)
	if err := l.Shape(2, 0); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	wait := l.put(t)
	if sends := wait(); sends != 1 {
		t.Errorf("dsbuild sent %d copies", sends)
	}
	sent, err := l.ControllerSent()
	if err != nil || float64(sent) > 1.2*(20<<20) {
		t.Errorf("the controller's link carried %d bytes in %s: %v", sent, time.Since(begin), err)
	}
}
