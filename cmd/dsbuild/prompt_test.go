//go:build linux

package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
)

// screen is a terminal, with what was written to it.
type screen struct {
	master, tty *os.File
	mu          sync.Mutex
	text        bytes.Buffer
	done        chan struct{} // closed once all that was written has arrived
}

func newScreen(t *testing.T) *screen {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{master: master, tty: tty, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		io.Copy(s, master)
	}()
	t.Cleanup(func() {
		tty.Close()
		master.Close()
		<-s.done
	})
	return s
}

// Write implements io.Writer.
func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func (s *screen) until(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !strings.Contains(s.String(), text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %q on the screen: %q", text, s)
		}
	}
}

func (s *screen) echoes(t *testing.T) bool {
	t.Helper()
	state, err := unix.IoctlGetTermios(int(s.tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return state.Lflag&unix.ECHO != 0
}

// The program itself, at a terminal, with the inventory on its standard input: the
// passphrase of a key is asked for once for all nodes, hidden, and it is nowhere
// afterwards; Ctrl-C leaves the terminal as it was.
func TestAsksAtTheTerminal(t *testing.T) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 3, Env: nodes.NoPython})
	if out, err := exec.Command("ssh-keygen", "-q", "-p", "-P", "", "-N", "s3cret", "-f", f.IdentityFile).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %s", out)
	}
	inv, err := os.ReadFile(f.Inventory)
	if err != nil {
		t.Fatal(err)
	}
	inv = bytes.Replace(inv, []byte("known_hosts: known_hosts"), []byte("known_hosts: "+f.KnownHosts), 1)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	start := func(s *screen) (*exec.Cmd, *bytes.Buffer) {
		t.Helper()
		var out bytes.Buffer
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Args = []string{"dsbuild", "verify", "-", "--verify", "files", "--json"}
		home := t.TempDir()
		cmd.Env = append(os.Environ(), "HOME="+home, "XDG_STATE_HOME="+home, "SSH_AUTH_SOCK=", "SSH_ASKPASS=", "TERM=xterm")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(inv), &out, s.tty
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 2}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		s.until(t, "passphrase: ")
		if s.echoes(t) {
			t.Error("it would show")
		}
		return cmd, &out
	}
	s := newScreen(t)
	cmd, out := start(s)
	io.WriteString(s.master, "s3cret\n")
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitNodes || strings.Count(out.String(), "no usable Python") < 3 {
		t.Errorf("exit code %d: %s", code, out)
	}
	if n := strings.Count(s.String(), "passphrase: "); n != 1 || strings.Contains(s.String()+out.String(), "s3cret") || !s.echoes(t) {
		t.Errorf("asked %d times; echo %v; on the screen: %q", n, s.echoes(t), s)
	}

	s = newScreen(t)
	cmd, _ = start(s)
	io.WriteString(s.master, "half\x03")
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitInterrupted || !s.echoes(t) {
		t.Errorf("exit code %d, echo %v; on the screen: %q", code, s.echoes(t), s)
	}
}
