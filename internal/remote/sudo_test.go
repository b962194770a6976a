//go:build linux

package remote_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/remotetest"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// other is a user that every system has.
const other = nodestest.SudoUser

func otherID(t *testing.T) (uid, gid int) {
	t.Helper()
	u, err := user.Lookup(other)
	if err != nil {
		t.Fatal(err)
	}
	uid, err = strconv.Atoi(u.Uid)
	if err != nil {
		t.Fatal(err)
	}
	gid, err = strconv.Atoi(u.Gid)
	if err != nil {
		t.Fatal(err)
	}
	return uid, gid
}

// othersDir is a folder that the other user alone may write to.
func othersDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	uid, gid := otherID(t)
	if err := errors.Join(os.Chown(dir, uid, gid), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// unattended is a dialer that uses sudo without a password.
func unattended() remote.Dialer {
	return remote.WithSudo(native.dialer(), remote.NewAnswers(nil), remote.SudoLimit)
}

// A connection that works as another user passes all conformance tests: real sudo, behind
// OpenSSH.
func TestConformanceSudo(t *testing.T) {
	t.Parallel()
	nodestest.Sudo(t)
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	target := fleetTarget(f, 0)
	target.Sudo = other
	d := remote.WithSudo(native.dialer(), remote.NewAnswers(nil), remote.SudoLimit)
	remotetest.Conformance(t, d, func(t *testing.T) (remote.Target, string) { return target, othersDir(t) })
}

// New files belong to the other user, whose commands start in his home.
func TestSudoIsTheOther(t *testing.T) {
	t.Parallel()
	nodestest.Sudo(t)
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	target := fleetTarget(f, 0)
	target.Sudo = other
	c := dial(t, unattended(), target)
	u, err := user.Lookup(other)
	if err != nil {
		t.Fatal(err)
	}
	o, e, err := output(t, c, remote.Command{
		Argv: []string{"sh", "-c", `echo "$(id -un) $HOME $PWD $A"; cat; echo said >&2`}, Env: map[string]string{"A": "it's"},
		Setup: "B=1", Stdin: strings.NewReader("read\n"),
	})
	if want := fmt.Sprintf("%s %s %s it's\nread\n", other, u.HomeDir, u.HomeDir); err != nil || o != want || e != "said\n" {
		t.Errorf("got %q, %q, %v; want %q", o, e, err, want)
	}
	dir := othersDir(t)
	up, b := blob(1<<20, filepath.Join(dir, "file"))
	up.Mode = 0o640
	if err := c.Put(t.Context(), up); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(up.Path)
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := otherID(t)
	if got, err := os.ReadFile(up.Path); err != nil || !bytes.Equal(got, b) || st.Mode() != 0o640 || int(st.Sys().(*syscall.Stat_t).Uid) != uid {
		t.Errorf("%d bytes, %v, %v", len(got), st.Mode(), err)
	}
	up.Path = "/root/dsbuild-test"
	if err := c.Put(t.Context(), up); err == nil || !strings.Contains(err.Error(), "permission denied for daemon") && !strings.Contains(err.Error(), "no such directory") {
		t.Errorf("got %v", err)
	}
}

// A broken transfer goes on, also as another user.
func TestSudoResumes(t *testing.T) {
	t.Parallel()
	nodestest.Sudo(t)
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	target := fleetTarget(f, 0)
	target.Sudo = other
	const size = 4 << 20
	for name, before := range map[string]func(want []byte) []byte{
		"nothing":  func([]byte) []byte { return nil },
		"half":     func(want []byte) []byte { return want[:size/2] },
		"all":      func(want []byte) []byte { return want },
		"another":  func(want []byte) []byte { return append(bytes.Clone(want[:size/2-1]), want[size/2-1]^1) },
		"too much": func(want []byte) []byte { return append(bytes.Clone(want), 0) },
	} {
		c := dial(t, unattended(), target)
		dir := othersDir(t)
		up, want := blob(size, filepath.Join(dir, "file"))
		uid, gid := otherID(t)
		part := up.Path + remote.PartSuffix
		if there := before(want); there != nil {
			if err := errors.Join(os.WriteFile(part, there, 0o640), os.Chown(part, uid, gid)); err != nil {
				t.Fatal(err)
			}
		}
		var told, first atomic.Int64
		up.Progress = func(n int64) {
			if told.Add(n) == n {
				first.Store(n)
			}
		}
		if err := c.Put(t.Context(), up); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, err := os.ReadFile(up.Path); err != nil || !bytes.Equal(got, want) || told.Load() != size {
			t.Errorf("%s: %d bytes, %v; told %d", name, len(got), err, told.Load())
		}
		if _, err := os.Stat(part); err == nil {
			t.Errorf("%s: the part is still there", name)
		}
		if went := first.Load() >= size/2; went != (name == "half" || name == "all") {
			t.Errorf("%s: went on: %v", name, went)
		}
	}
	// A transfer that breaks leaves the bytes that have arrived.
	s := sshtest.Start(t, sshtest.Options{CutAfter: size * 3 / 4, Cuts: 1, Rate: size})
	target = s.Target()
	target.Sudo = "root"
	up, want := blob(size, filepath.Join(t.TempDir(), "file"))
	d := remote.WithSudo(native.quick(), remote.NewAnswers(nil), remote.SudoLimit)
	if err := dial(t, d, target).Put(t.Context(), up); !errors.Is(err, remote.ErrLost) {
		t.Fatalf("cut: %v", err)
	}
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if st, err := os.Stat(up.Path + remote.PartSuffix); err == nil && st.Size() > 1<<20 {
			break
		}
		if time.Since(begin) > time.Minute {
			t.Fatal("no part was left")
		}
	}
	if err := dial(t, d, target).Put(t.Context(), up); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(up.Path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// realSudo is a node where the user daemon logs in, with real sudo.
func realSudo(t *testing.T, sudoers string) *sshtest.Server {
	t.Helper()
	german := append(os.Environ(), "LANG=C.UTF-8", "LANGUAGE=de") // sudo would translate its messages
	s := sshtest.Start(t, sshtest.Options{Shell: nodestest.SudoShell(t, sudoers), Env: german})
	s.User = other
	return s
}

// sudoAt is a dialer with a person who answers, and a node on which commands run as root.
func sudoAt(s *sshtest.Server, p remote.Prompter) (remote.Dialer, remote.Target) {
	target := s.Target()
	target.Name, target.Sudo = "gpu01", "root"
	return remote.WithSudo(native.quick(), remote.NewAnswers(p), remote.SudoLimit), target
}

// dsbuild asks for sudo's password once, gives it to sudo alone and only when sudo asks. The
// program reads exactly its own input.
func TestSudoPassword(t *testing.T) {
	t.Parallel()
	s := realSudo(t, other+" ALL=(ALL) ALL")
	p := inTurn("a slip", "secret")
	d, target := sudoAt(s, p)
	c := dial(t, d, target)
	in := strings.Repeat("secret\n\x00\xff binary", 1<<15)
	for range 3 {
		o, e, err := output(t, c, remote.Command{Argv: []string{"sh", "-c", "id -un; cat; echo said >&2"}, Stdin: strings.NewReader(in)})
		if err != nil || o != "root\n"+in || e != "said\n" {
			t.Fatalf("got %d bytes %q, %q, %v", len(o), o[:min(len(o), 40)], e, err)
		}
	}
	up, b := blob(1<<20, filepath.Join(t.TempDir(), "file"))
	if err := c.Put(t.Context(), up); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(up.Path); err != nil || !bytes.Equal(got, b) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	dial(t, d, target) // another node
	if want := "gpu01: sudo password for daemon: "; len(p.asked) != 2 || p.asked[0] != want || p.asked[1] != want {
		t.Errorf("asked %q", p.asked)
	}
}

func TestSudoRefuses(t *testing.T) {
	t.Parallel()
	s := realSudo(t, other+" ALL=(ALL) ALL")
	p := says("a slip")
	d, target := sudoAt(s, p)
	for range 3 {
		_, err := d.Dial(t.Context(), target)
		wantError(t, err, remote.ErrSudo, "on gpu01: .*(incorrect password|password rejected by sudo on .*)", "")
		if secrets.MatchString(fmt.Sprint(err)) {
			t.Error(err)
		}
	}
	if p.count() != 3 {
		t.Errorf("asked %d times", p.count())
	}
	d, target = sudoAt(s, nil)
	_, err := d.Dial(t.Context(), target)
	wantError(t, err, remote.ErrSudo, "a password is required", "from a terminal to enter it, or add NOPASSWD for daemon")

	d, target = sudoAt(realSudo(t, "nobody ALL=(ALL) ALL"), says("secret"))
	_, err = d.Dial(t.Context(), target)
	wantError(t, err, remote.ErrSudo, "not in the sudoers|may not run sudo", "daemon ALL=\\(root\\) NOPASSWD: ALL")

	d, target = sudoAt(realSudo(t, other+" ALL=(ALL) NOPASSWD: ALL"), nil)
	runTrue(t, dial(t, d, target))
	target.Sudo = "no-such-user"
	_, err = d.Dial(t.Context(), target)
	wantError(t, err, remote.ErrSudo, "unknown user", "to a user of the node")
}

// sudoRS is like behind, for sudo-rs: its prompt has the words of -p in brackets, as they are.
const sudoRS = `while [ "$1" != -- ]; do [ "$1" = -p ] && prompt=$2; shift; done; shift
[ -n "$prompt" ] || { echo "sudo: interactive authentication is required" >&2; exit 1; }
printf '[sudo: %s] Password: ' "$prompt" >&2; read x
`

// A user who may not use sudo on one node says nothing about the password on another one.
func TestSudoOfNoSudoer(t *testing.T) {
	p := says("secret")
	d, _ := sudoAt(fakeSudo(t, ""), p)
	for _, c := range []struct{ script, why, hint string }{
		{behind + `printf %s "$prompt" >&2; read x; echo "train is not in the sudoers file." >&2; exit 1`, "not in the sudoers", "NOPASSWD"},
		{sudoRS + `echo "sudo: I'm sorry train. I'm afraid I can't do that" >&2; exit 1`, "I can't do that", "train ALL=.root. NOPASSWD"},
		{`echo "sudo: user 'root' not found" >&2; exit 1`, "not found", "to a user of the node"},
		{sudoRS + `[ "$x" = secret ] && exec "$@"`, "", ""},
		{behind + `printf %s "$prompt" >&2; read x; exec "$@"`, "", ""},
	} {
		target := fakeSudo(t, c.script).Target()
		target.Sudo, target.User = "root", "train"
		conn, err := d.Dial(t.Context(), target)
		switch {
		case c.why != "":
			wantError(t, err, remote.ErrSudo, c.why, c.hint)
		case err != nil:
			t.Error(err)
		default:
			conn.Close()
		}
	}
	if p.count() != 1 {
		t.Errorf("asked %q", p.asked)
	}
	d, target := sudoAt(fakeSudo(t, sudoRS), nil)
	_, err := d.Dial(t.Context(), target)
	wantError(t, err, remote.ErrSudo, "authentication is required", "from a terminal to enter the password")
}

// fakeSudo is a node where sudo is a script.
func fakeSudo(t *testing.T, script string) *sshtest.Server {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "sudo"), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return sshtest.Start(t, sshtest.Options{Env: []string{"PATH=" + dir + ":" + os.Getenv("PATH")}})
}

// behind is the part of a script that goes on as sudo does.
const behind = `while [ "$1" != -- ]; do [ "$1" = -p ] && prompt=$2; shift; done; shift
prompt=$(printf %s "$prompt" | sed s/%p/train/)
`

func TestSudoOddities(t *testing.T) {
	for name, c := range map[string]struct{ script, want, asked string }{
		"its prompt in pieces": {behind + `while [ -n "$prompt" ]; do rest=${prompt#?}; printf %s "${prompt%"$rest"}" >&2; prompt=$rest; done
read x; [ "$x" = secret ] || exit 1; exec "$@"`, "", "1"},
		"a lecture, and no prompt": {behind + `seq 1 20000 >&2; exec "$@"`, "", "0"},
		"twice":                    {behind + `for i in 1 2; do printf %s "$prompt" >&2; read x; done; exec "$@"`, "", "2"},
		"another question":         {behind + `printf 'Passcode: ' >&2; read x; exec "$@"`, `timed out after .* with output "Passcode:"`, "0"},
		"hangs up":                 {"exit 1", "on .*: exit status 1$", "0"},
		"mute":                     {behind + `printf %s "$prompt" >&2; cat >/dev/null; exit 1`, "timed out after", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := says("secret")
			_, target := sudoAt(fakeSudo(t, c.script), p)
			limit := remote.SudoLimit
			if strings.Contains(c.want, "no command") {
				limit = 5 * time.Second
			}
			conn, err := remote.WithSudo(native.quick(), remote.NewAnswers(p), limit).Dial(t.Context(), target)
			if c.want == "" && err == nil {
				conn.Close()
			}
			if c.want == "" && err != nil {
				t.Error(err)
			} else if c.want != "" {
				wantError(t, err, remote.ErrSudo, c.want, "")
			}
			if fmt.Sprint(p.count()) != c.asked {
				t.Errorf("asked %q", p.asked)
			}
		})
	}
	missing := sshtest.Start(t, sshtest.Options{Env: []string{"PATH=/nowhere"}})
	d, target := sudoAt(missing, nil)
	_, err := d.Dial(t.Context(), target)
	wantError(t, err, remote.ErrSudo, "not found", "install sudo on the node")
}

// The node names the user whose password sudo wants. dsbuild reuses a typed password only as
// that of the login user. For another user it asks at each node.
func TestSudoLendsThePasswordOfTheLoginAlone(t *testing.T) {
	t.Parallel()
	wants := func(of string) string {
		return strings.Replace(behind, "s/%p/train/", "s/%p/"+of+"/", 1) + `printf %s "$prompt" >&2; read x; [ "$x" = ` + of + `-secret ] || exit 1; exec "$@"`
	}
	p := &person{answer: func(_ context.Context, question string, _ bool) (string, error) {
		_, of, _ := strings.Cut(question, "sudo password for ")
		of, _, _ = strings.Cut(of, ":")
		return of + "-secret", nil
	}}
	d := remote.WithSudo(native.quick(), remote.NewAnswers(p), remote.SudoLimit)
	for _, c := range []struct{ name, of, user, asked string }{
		{"gpu01", "train", "train", "gpu01: sudo password for train: "},
		{"gpu02", "train", "train", ""},
		{"gpu03", "root", "train", "gpu03: sudo password for root: "},
		{"gpu04", "root", "train", "gpu04: sudo password for root: "},
		{"gpu05", "alice", "train", "gpu05: sudo password for alice: "},
		{"gpu06", "alice", "alice", "gpu06: sudo password for alice: "},
		{"gpu07", "train", "alice", "gpu07: sudo password for train: "},
		{"gpu08", "alice", "alice", ""},
	} {
		before := p.count()
		target := fakeSudo(t, wants(c.of)).Target()
		target.Name, target.Sudo, target.User = c.name, "root", c.user
		runTrue(t, dial(t, d, target))
		if asked := strings.Join(p.asked[before:], "|"); asked != c.asked {
			t.Errorf("%s: asked %q, want %q", c.name, asked, c.asked)
		}
	}
}

// The login user may come from the client configuration: then dsbuild reuses that user's
// password.
func TestSudoKnowsTheLoginOfTheConfiguration(t *testing.T) {
	p := says("secret")
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, []byte("User train\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := remote.WithSudo(remote.NewSSH(remote.Options{Config: config, AgentSocket: "none"}), remote.NewAnswers(p), remote.SudoLimit)
	for range 2 {
		target := fakeSudo(t, behind+`printf %s "$prompt" >&2; read x; exec "$@"`).Target()
		target.Sudo, target.User = "root", ""
		runTrue(t, dial(t, d, target))
	}
	if p.count() != 1 {
		t.Errorf("asked %q", p.asked)
	}
}

// A node that floods instead of starting the program is cut off.
func TestSudoFloodIsCutOff(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{"before": "yes >&2", "behind true": behind + `"$@" && yes`, "on its way": behind + `if [ -e ../begun ]; then "$@"; yes >&2; fi; touch ../begun; exec "$@"`} {
		target := fakeSudo(t, script).Target()
		target.Sudo = "root"
		c, err := remote.WithSudo(native.quick(), remote.NewAnswers(nil), remote.SudoLimit).Dial(t.Context(), target)
		if name != "on its way" {
			if !errors.Is(err, remote.ErrFlood) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		up, _ := blob(1<<10, filepath.Join(t.TempDir(), "file"))
		if err := c.Put(t.Context(), up); !errors.Is(err, remote.ErrFlood) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// After a cancellation, nothing asks or waits any more.
func TestSudoCancelled(t *testing.T) {
	began := make(chan struct{})
	silent := &person{answer: func(ctx context.Context, _ string, _ bool) (string, error) {
		close(began)
		<-ctx.Done()
		return "", ctx.Err()
	}}
	d, target := sudoAt(fakeSudo(t, behind+`printf %s "$prompt" >&2; read x`), silent)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := d.Dial(ctx, target)
		done <- err
	}()
	<-began
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("still there")
	}
}
