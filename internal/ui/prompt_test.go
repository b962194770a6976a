//go:build linux

package ui_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// TestAskingProcess is not a test. It is the program that the other tests run at a terminal of
// its own. It asks the questions in UI_ASK, below a running step.
func TestAskingProcess(t *testing.T) {
	questions := os.Getenv("UI_ASK")
	if questions == "" {
		return
	}
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt)
	defer stop()
	console := ui.New(os.Stderr, ui.FromEnvironment(os.Stderr))
	step := console.Step("connecting")
	p := ui.FindPrompt(console)
	if p == nil {
		fmt.Println("nobody")
		os.Exit(0)
	}
	for q := range strings.SplitSeq(questions, "|") {
		go func() {
			time.Sleep(50 * time.Millisecond)
			console.Note("meanwhile")
		}()
		text, err := p.Ask(ctx, q, strings.HasPrefix(q, "code"))
		fmt.Printf("%s=%q %v\n", q, text, err)
		if os.Getenv("UI_HANG") != "" {
			p.Close()
			os.Exit(0)
		}
	}
	in, _ := io.ReadAll(os.Stdin)
	fmt.Printf("stdin=%q\n", in)
	step.End(ui.Done, "")
	p.Close()
	console.Close()
	os.Exit(0)
}

// asking is that program.
type asking struct {
	t      *testing.T
	cmd    *exec.Cmd
	master *os.File
	tty    *os.File
	stdout bytes.Buffer

	mu     sync.Mutex
	screen bytes.Buffer
}

func ask(t *testing.T, questions string, env ...string) *asking {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	a := &asking{t: t, master: master, tty: tty}
	a.cmd = exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestAskingProcess$")
	a.cmd.Env = append(os.Environ(), append(env, "UI_ASK="+questions, "TERM=xterm", "LC_ALL=C.UTF-8", "SSH_ASKPASS_REQUIRE=")...)
	a.cmd.Stdin, a.cmd.Stdout, a.cmd.Stderr = strings.NewReader("an inventory\n"), &a.stdout, tty
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 2}
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			a.mu.Lock()
			a.screen.Write(buf[:n])
			a.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		tty.Close()
		master.Close()
		<-read
	})
	return a
}

func (a *asking) seen() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.screen.String()
}

// until waits until a text appears on the screen.
func (a *asking) until(text string) {
	a.t.Helper()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(a.seen(), text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			a.t.Fatalf("no %q on the screen: %q, %q", text, a.seen(), a.stdout.String())
		}
	}
}

func (a *asking) types(text string) {
	a.t.Helper()
	if _, err := io.WriteString(a.master, text); err != nil {
		a.t.Fatal(err)
	}
}

func (a *asking) echoes() bool {
	a.t.Helper()
	state, err := unix.IoctlGetTermios(int(a.tty.Fd()), unix.TCGETS)
	if err != nil {
		a.t.Fatal(err)
	}
	return state.Lflag&unix.ECHO != 0
}

func (a *asking) end() string {
	a.t.Helper()
	if err := a.cmd.Wait(); err != nil {
		a.t.Errorf("%v: %s %s", err, a.stdout.String(), a.seen())
	}
	if !a.echoes() {
		a.t.Error("the terminal does not echo any more")
	}
	return a.stdout.String()
}

// Typed text is hidden, or not. Standard input is separate. During the question nothing else
// writes to the terminal.
func TestPromptAtATerminal(t *testing.T) {
	t.Parallel()
	a := ask(t, "gpu01: password: |code: ")
	a.until("password: ")
	if a.echoes() {
		t.Error("it would show")
	}
	time.Sleep(250 * time.Millisecond) // time for a redraw, and for the note
	if _, after, _ := strings.Cut(a.seen(), "password: "); after != "" {
		t.Errorf("%q was written over the question", after)
	}
	a.types("s3cret\n")
	a.until("code: ")
	a.types("123456\r\n")
	a.until("123456")
	got := a.end()
	if want := "gpu01: password: =\"s3cret\" <nil>\ncode: =\"123456\" <nil>\nstdin=\"an inventory\\n\"\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if s := a.seen(); strings.Contains(s, "s3cret") || !strings.Contains(s, "meanwhile") {
		t.Errorf("on the screen: %q", s)
	}
}

// Text that was typed before a question is not an answer to it.
func TestPromptTakesNothingTypedBefore(t *testing.T) {
	t.Parallel()
	a := ask(t, "code one: |password: ")
	a.until("code one: ")
	a.types("1\nls -l\n")
	a.until("password: ")
	a.types("s3cret\n")
	if got := a.end(); !strings.Contains(got, `password: ="s3cret"`) {
		t.Errorf("got %q", got)
	}
}

// Ctrl-C ends a question and restores the terminal.
func TestPromptInterrupted(t *testing.T) {
	t.Parallel()
	a := ask(t, "password: ", "UI_HANG=1")
	a.until("password: ")
	a.types("half a pass\x1a\x03")
	if got := a.end(); !strings.Contains(got, context.Canceled.Error()) {
		t.Errorf("got %q", got)
	}
	if strings.Contains(a.seen(), "half") {
		t.Errorf("on the screen: %q", a.seen())
	}
}

// Close ends a question, too.
func TestPromptClosed(t *testing.T) {
	t.Setenv("SSH_ASKPASS_REQUIRE", "force")
	asked := filepath.Join(t.TempDir(), "asked")
	t.Setenv("SSH_ASKPASS", script(t, ": >'"+asked+"'; exec sleep 600"))
	p := ui.FindPrompt(ui.New(io.Discard, ui.Options{}))
	done := make(chan error, 1)
	go func() {
		_, err := p.Ask(t.Context(), "password: ", false)
		done <- err
	}()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(asked); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the program does not start")
		}
	}
	p.Close()
	p.Close()
	select {
	case err := <-done:
		if err == nil {
			t.Error("no error")
		}
	case <-time.After(time.Minute):
		t.Fatal("still asking")
	}
	if _, err := p.Ask(t.Context(), "again: ", false); err == nil {
		t.Error("asked after the end")
	}
	(*ui.Prompt)(nil).Close()
}

func script(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "askpass")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

// Without a terminal SSH_ASKPASS asks, or nobody can be asked.
func TestPromptWithoutATerminal(t *testing.T) {
	run := func(env ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestAskingProcess$")
		cmd.Env = append(os.Environ(), append([]string{"UI_ASK=password: ", "SSH_ASKPASS=", "SSH_ASKPASS_REQUIRE="}, env...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		out, err := cmd.Output()
		if err != nil {
			t.Error(err)
		}
		return string(out)
	}
	if got := run(); got != "nobody\n" {
		t.Errorf("got %q", got)
	}
	asks := "SSH_ASKPASS=" + script(t, `echo "to: $1"; echo more`)
	if got := run(asks); !strings.Contains(got, `password: ="to: password: " <nil>`) {
		t.Errorf("got %q", got)
	}
	if got := run(asks, "SSH_ASKPASS_REQUIRE=never"); got != "nobody\n" {
		t.Errorf("got %q", got)
	}
	if got := run("SSH_ASKPASS=" + script(t, "exit 1")); !strings.Contains(got, "no answer from") {
		t.Errorf("got %q", got)
	}
}

func TestPromptEndsWithItsContext(t *testing.T) {
	t.Setenv("SSH_ASKPASS_REQUIRE", "force")
	t.Setenv("SSH_ASKPASS", script(t, "exec sleep 600"))
	p := ui.FindPrompt(ui.New(io.Discard, ui.Options{}))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := p.Ask(ctx, "password: ", false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if d := time.Since(begin); d > time.Minute {
		t.Errorf("after %s", d)
	}
}
