// Package remotetest tests the behaviour that every kind of connection to a node must have.
package remotetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/remote"
)

// Conformance runs the tests that every Conn must pass. start returns a node, and a folder that
// both the node and the test see. Most tests share a connection.
func Conformance(t *testing.T, d remote.Dialer, start func(*testing.T) (remote.Target, string)) {
	target, dir := start(t)
	shared := Dial(t, d, target)
	for name, test := range map[string]func(*testing.T, remote.Conn, string){
		"run":               testRun,
		"exit codes":        testExit,
		"setup and env":     testSetupEnv,
		"stdin":             testStdin,
		"streaming":         testStreaming,
		"cancel a command":  testCancelRun,
		"put":               testPut,
		"put replaces":      testPutReplaces,
		"put keeps the old": testPutKeepsOld,
		"put refusals":      testPutRefusals,
	} {
		t.Run(name, func(t *testing.T) { test(t, shared, dir) })
	}
	for name, test := range map[string]func(*testing.T, remote.Conn, string){
		"many commands": testManyRuns, // as many as a node allows, beside any that still end
		"cancel a put":  testCancelPut,
		"after close":   testClosed,
	} {
		t.Run(name, func(t *testing.T) { test(t, Dial(t, d, target), dir) })
	}
}

// Dial opens a connection and closes it when the test ends.
func Dial(t *testing.T, d remote.Dialer, target remote.Target) remote.Conn {
	t.Helper()
	c, err := d.Dial(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Blob returns an upload of n random bytes, and the bytes.
func Blob(n int, path string) (remote.Upload, []byte) {
	b := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(b) // never fails
	sum := sha256.Sum256(b)
	return remote.Upload{
		Open: func() (io.ReadSeekCloser, error) { return nopCloser{bytes.NewReader(b)}, nil },
		Size: int64(n), SHA256: hex.EncodeToString(sum[:]), Path: path, Mode: 0o640,
	}, b
}

type nopCloser struct{ io.ReadSeeker }

func (nopCloser) Close() error { return nil }

// NoParts fails if a temporary file is left in dir.
func NoParts(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".dsbuild-") {
			t.Errorf("%s was left behind", e.Name())
		}
	}
}

// Output runs a command and returns its output.
func Output(t *testing.T, c remote.Conn, cmd remote.Command) (stdout, stderr string, err error) {
	t.Helper()
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err = c.Run(t.Context(), cmd)
	return o.String(), e.String(), err
}

func testRun(t *testing.T, c remote.Conn, _ string) {
	nasty := "a b'c\"d$HOME`id`\\ \n*~#;&|!"
	o, e, err := Output(t, c, remote.Command{Argv: []string{"sh", "-c", `printf %s "$1"; printf err >&2`, "sh", nasty}})
	if err != nil || o != nasty || e != "err" {
		t.Errorf("got %q, %q, %v", o, e, err)
	}
	if err := c.Run(t.Context(), remote.Command{Argv: []string{"sh", "-c", "echo to nobody; echo to nobody >&2"}}); err != nil {
		t.Errorf("without streams: %v", err)
	}
}

func testExit(t *testing.T, c remote.Conn, _ string) {
	var exit *remote.ExitError
	_, _, err := Output(t, c, remote.Command{Argv: []string{"sh", "-c", "exit 7"}})
	if !errors.As(err, &exit) || exit.Code != 7 || exit.Signal != "" {
		t.Errorf("exit 7: %v", err)
	}
	_, _, err = Output(t, c, remote.Command{Argv: []string{"sh", "-c", "exit 255"}}) // the status of an ssh that failed itself
	if !errors.As(err, &exit) || exit.Code != 255 || exit.Signal != "" {
		t.Errorf("exit 255: %v", err)
	}
	_, _, err = Output(t, c, remote.Command{Argv: []string{"sh", "-c", "kill -SEGV $$"}})
	// A shell in between may report the signal as its own exit status.
	if !errors.As(err, &exit) || exit.Signal != "SEGV" && exit.Code != 128+11 {
		t.Errorf("killed: %v", err)
	}
	_, _, err = Output(t, c, remote.Command{Argv: []string{"/no/such/program"}})
	if !errors.As(err, &exit) || exit.Code != 127 {
		t.Errorf("no such program: %v", err)
	}
}

func testSetupEnv(t *testing.T, c remote.Conn, _ string) {
	o, _, err := Output(t, c, remote.Command{
		Setup: "A=$(echo one two); export A", Env: map[string]string{"B": "it's $HOME"},
		Argv: []string{"sh", "-c", `printf '%s|%s' "$A" "$B"`},
	})
	if err != nil || o != "one two|it's $HOME" {
		t.Errorf("got %q, %v", o, err)
	}
	var exit *remote.ExitError
	o, e, err := Output(t, c, remote.Command{Setup: "(exit 3)", Argv: []string{"echo", "ran"}})
	if !errors.As(err, &exit) || exit.Code != 3 || o != "" || !strings.Contains(e, "setup line") {
		t.Errorf("a failing setup: %q %q %v", o, e, err)
	}
}

func testStdin(t *testing.T, c remote.Conn, _ string) {
	in := strings.Repeat("0123456789abcdef", 1<<16)
	o, _, err := Output(t, c, remote.Command{Argv: []string{"cat"}, Stdin: strings.NewReader(in)})
	if err != nil || o != in {
		t.Errorf("cat returned %d of %d bytes, %v", len(o), len(in), err)
	}
	// The result must not wait for unread input, nor for an input that never ends.
	if _, _, err := Output(t, c, remote.Command{Argv: []string{"true"}, Stdin: strings.NewReader(in)}); err != nil {
		t.Errorf("unread input: %v", err)
	}
	r, w := io.Pipe()
	defer w.Close()
	if _, _, err := Output(t, c, remote.Command{Argv: []string{"true"}, Stdin: r}); err != nil {
		t.Errorf("open input: %v", err)
	}
}

func testStreaming(t *testing.T, c remote.Conn, _ string) {
	r, w := io.Pipe()
	done := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		done <- c.Run(ctx, remote.Command{Argv: []string{"sh", "-c", "echo first; read x; echo $x"}, Stdin: r, Stdout: WriterFunc(func(b []byte) (int, error) {
			if string(b) == "first\n" {
				go func() { fmt.Fprintln(w, "second") }() // the program waits for this line
			}
			return len(b), nil
		})})
	}()
	if err := <-done; err != nil {
		t.Errorf("the first line did not arrive while the program ran: %v", err)
	}
}

// WriterFunc makes a Writer from a function.
type WriterFunc func([]byte) (int, error)

// Write implements io.Writer.
func (f WriterFunc) Write(b []byte) (int, error) { return f(b) }

func testCancelRun(t *testing.T, c remote.Conn, dir string) {
	ctx, cancel := context.WithCancel(t.Context())
	var late atomic.Bool
	var over atomic.Bool
	err := c.Run(ctx, remote.Command{
		Argv: []string{"sh", "-c", "echo on; while :; do echo noise; done"},
		Stdout: WriterFunc(func(b []byte) (int, error) {
			if over.Load() {
				late.Store(true)
			}
			cancel()
			return len(b), nil
		}),
	})
	over.Store(true)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	// The connection must still work for the next command.
	if o, _, err := Output(t, c, remote.Command{Argv: []string{"echo", "next"}}); o != "next\n" || err != nil {
		t.Errorf("the next command: %q, %v", o, err)
	}
	if late.Load() {
		t.Error("the caller's writer was used after Run had returned")
	}
	// With a context that has ended, Run starts nothing.
	mark := filepath.Join(dir, "must-not-be")
	if err := c.Run(ctx, remote.Command{Argv: []string{"touch", mark}}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("it ran")
	}
}

func testManyRuns(t *testing.T, c remote.Conn, _ string) {
	errs := make(chan error)
	for i := range 8 {
		go func() {
			var o bytes.Buffer
			err := c.Run(t.Context(), remote.Command{Argv: []string{"echo", fmt.Sprint(i)}, Stdout: &o})
			if err == nil && o.String() != fmt.Sprintln(i) {
				err = fmt.Errorf("%d came back as %q", i, o.String())
			}
			errs <- err
		}()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func testPut(t *testing.T, c remote.Conn, dir string) {
	for _, n := range []int{0, 1, 32 << 10, 32<<10 + 1, 3<<20 + 17} {
		up, b := Blob(n, filepath.Join(dir, fmt.Sprintf("a file's %d bytes", n)))
		var told atomic.Int64
		up.Progress = func(n int64) { told.Add(n) }
		if err := c.Put(t.Context(), up); err != nil {
			t.Errorf("%d bytes: %v", n, err)
			continue
		}
		got, err := os.ReadFile(up.Path)
		if err != nil || !bytes.Equal(got, b) {
			t.Errorf("%d bytes: another file arrived (%d bytes, %v)", n, len(got), err)
		}
		if st, err := os.Stat(up.Path); err != nil || st.Mode() != 0o640 {
			t.Errorf("%d bytes: mode %v, %v", n, st.Mode(), err)
		}
		if told.Load() != int64(n) {
			t.Errorf("%d bytes: progress told %d", n, told.Load())
		}
	}
	NoParts(t, dir)
}

func testPutReplaces(t *testing.T, c remote.Conn, dir string) {
	up, b := Blob(100000, filepath.Join(dir, "file"))
	if err := os.WriteFile(up.Path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Put(t.Context(), up); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(up.Path); err != nil || !bytes.Equal(got, b) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	NoParts(t, dir)
}

func testPutKeepsOld(t *testing.T, c remote.Conn, dir string) {
	up, _ := Blob(100000, filepath.Join(dir, "file"))
	if err := os.WriteFile(up.Path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*remote.Upload){
		"other digest": func(u *remote.Upload) { u.SHA256 = strings.Repeat("0", 64) },
		"other size":   func(u *remote.Upload) { u.Size++ },
		"no file":      func(u *remote.Upload) { u.Open = func() (io.ReadSeekCloser, error) { return nil, fs.ErrNotExist } },
		"broken file": func(u *remote.Upload) {
			u.Open = func() (io.ReadSeekCloser, error) { return nopCloser{brokenFile{}}, nil }
		},
	} {
		bad := up
		spoil(&bad)
		if err := c.Put(t.Context(), bad); err == nil {
			t.Errorf("%s: no error", name)
		}
		if got, _ := os.ReadFile(up.Path); string(got) != "old" {
			t.Errorf("%s: the old file is gone", name)
		}
		NoParts(t, dir)
	}
}

type brokenFile struct{}

func (brokenFile) Read([]byte) (int, error)       { return 0, errors.New("bad sector") }
func (brokenFile) Seek(int64, int) (int64, error) { return 0, nil }

func testPutRefusals(t *testing.T, c remote.Conn, dir string) {
	up, _ := Blob(10, "relative/path")
	if err := c.Put(t.Context(), up); err == nil || !strings.Contains(err.Error(), "not an absolute path") {
		t.Errorf("a relative path: %v", err)
	}
	up.Path = filepath.Join(dir, "missing", "file")
	if err := c.Put(t.Context(), up); err == nil || !strings.Contains(err.Error(), "no such directory") {
		t.Errorf("a missing folder: %v", err)
	}
	up.Path = filepath.Join(dir, "folder")
	if err := os.Mkdir(up.Path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := c.Put(t.Context(), up); err == nil {
		t.Error("a folder was replaced")
	}
	NoParts(t, dir)
}

func testCancelPut(t *testing.T, c remote.Conn, dir string) {
	ctx, cancel := context.WithCancel(t.Context())
	up, _ := Blob(64<<20, filepath.Join(dir, "big"))
	var told atomic.Int64
	up.Progress = func(n int64) {
		if told.Add(n) > 4<<20 {
			cancel()
		}
	}
	err := c.Put(ctx, up)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(up.Path); err == nil {
		t.Error("the file appeared")
	}
	NoParts(t, dir)
	up, _ = Blob(1000, filepath.Join(dir, "small"))
	if err := c.Put(t.Context(), up); err != nil {
		t.Errorf("the next file: %v", err)
	}
}

func testClosed(t *testing.T, c remote.Conn, dir string) {
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	if err := c.Run(t.Context(), remote.Command{Argv: []string{"true"}}); !errors.Is(err, remote.ErrLost) {
		t.Errorf("run: %v", err)
	}
	up, _ := Blob(10, filepath.Join(dir, "file"))
	if err := c.Put(t.Context(), up); !errors.Is(err, remote.ErrLost) {
		t.Errorf("put: %v", err)
	}
}
