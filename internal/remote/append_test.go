//go:build linux

package remote_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/remotetest"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/node"
)

// writing is a Dialer with which a program on the node writes the files.
type writing struct{ remote.Dialer }

func (w writing) Dial(ctx context.Context, t remote.Target) (remote.Conn, error) {
	c, err := w.Dialer.Dial(ctx, t)
	if err != nil {
		return nil, err
	}
	return writingConn{c}, nil
}

type writingConn struct{ remote.Conn }

func (c writingConn) Put(ctx context.Context, up remote.Upload) error {
	return c.Conn.Put(ctx, byProgram(c.Conn, up))
}

// byProgram is an upload that node.Append writes.
func byProgram(c remote.Conn, up remote.Upload) remote.Upload {
	up.Write = func(ctx context.Context, path string, at int64, r io.Reader) (string, error) {
		return node.Append(ctx, c, "python3", path, at, r)
	}
	return up
}

func TestConformanceOfWrite(t *testing.T) {
	remotetest.Conformance(t, writing{dialer()}, func(t *testing.T) (remote.Target, string) {
		s := sshtest.Start(t, sshtest.Options{})
		return s.Target(), s.Home
	})
}

func TestConformanceOfWriteOpenSSH(t *testing.T) {
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	remotetest.Conformance(t, writing{dialer()}, func(*testing.T) (remote.Target, string) { return fleetTarget(f, 0), f.Nodes[0].Home })
}

// The error gives the reason why the program that writes failed, and nothing is left.
func TestWriteThatFails(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	c := dial(t, dialer(), s.Target())
	full := filepath.Join(t.TempDir(), "full")
	if err := os.Mkdir(full, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("dsbuild-test", full, "tmpfs", 0, "size=2m"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("mounting a small file system: %v", err)
		}
		t.Skipf("mounting a small file system: %v", err)
	}
	defer syscall.Unmount(full, syscall.MNT_DETACH) //nolint:errcheck // the test ends
	up, _ := blob(3<<20, filepath.Join(full, "file"))
	up.Resume = true // free space is not checked first
	if err := c.Put(t.Context(), byProgram(c, up)); !errors.Is(err, remote.ErrNoSpace) {
		t.Errorf("a full disk: %v", err)
	}
	noParts(t, full)
	up.Path = filepath.Join(s.Home, "file")
	for name, what := range map[string]struct {
		write func(context.Context, string, int64, io.Reader) (string, error)
		want  string
	}{
		"no Python": {func(ctx context.Context, path string, at int64, r io.Reader) (string, error) {
			return node.Append(ctx, c, "/nowhere/python", path, at, r)
		}, "exit status 127"},
		"another digest": {func(_ context.Context, _ string, _ int64, r io.Reader) (string, error) {
			_, err := io.Copy(io.Discard, r)
			return digest(nil), err
		}, "on the node, "},
		"another's error": {func(context.Context, string, int64, io.Reader) (string, error) { return "", errors.New("it is Monday") }, "it is Monday"},
	} {
		up := up
		up.Write = what.write
		if err := c.Put(t.Context(), up); err == nil || !strings.Contains(err.Error(), what.want) {
			t.Errorf("%s: %v", name, err)
		}
		noParts(t, s.Home)
	}
	// A part that shrinks between two checks does not count as complete.
	file := filepath.Join(s.Home, "short")
	if err := os.WriteFile(file, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	if sum, err := node.Append(t.Context(), c, "python3", file, 4, strings.NewReader("d")); err == nil {
		t.Errorf("a file that is shorter: %s", sum)
	}
	sum, err := node.Append(t.Context(), c, "python3", file, 3, strings.NewReader("def"))
	if got, _ := os.ReadFile(file); err != nil || sum != digest([]byte("abcdef")) || !bytes.Equal(got, []byte("abcdef")) {
		t.Errorf("%q, %s, %v", got, sum, err)
	}
}
