//go:build linux

package remote_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
)

func TestOpenSSHReinstalledNode(t *testing.T) { testOpenSSHReinstalledNode(t, native) }

func testOpenSSHReinstalledNode(t *testing.T, by way) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	old, err := f.Nodes[0].HostKey()
	if err := errors.Join(err, f.Rekey(0)); err != nil {
		t.Fatal(err)
	}
	changed, err := f.Nodes[0].HostKey()
	if err != nil {
		t.Fatal(err)
	}
	_, err = by.quick().Dial(t.Context(), fleetTarget(f, 0))
	wantError(t, err, remote.ErrHostKey, "has changed", "ssh-keygen -f")
	for _, want := range []string{ssh.FingerprintSHA256(old), ssh.FingerprintSHA256(changed), f.KnownHosts + ":1"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %s", err, want)
		}
	}
}

func TestOpenSSHRefusesUser(t *testing.T) { testOpenSSHRefusesUser(t, native) }

func testOpenSSHRefusesUser(t *testing.T, by way) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	target := fleetTarget(f, 0)
	target.User = "no-such-user"
	_, err := by.quick().Dial(t.Context(), target)
	wantError(t, err, remote.ErrAuth, `for no-such-user@127\.0\.1\.1:\d+: tried .*id_ed25519; the node accepts publickey`, "authorized_keys")
}

func TestOpenSSHJumpHost(t *testing.T) { testOpenSSHJumpHost(t, native) }

func testOpenSSHJumpHost(t *testing.T, by way) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 3, Env: nodes.NoPython})
	target := fleetTarget(f, 2)
	target.Jump = []remote.Target{fleetTarget(f, 0), fleetTarget(f, 1)}
	c := dial(t, by.quick(), target)
	o, _, err := output(t, c, remote.Command{Argv: []string{"sh", "-c", "echo $HOME"}})
	if err != nil || strings.TrimSpace(o) != f.Nodes[2].Home {
		t.Errorf("got %q, %v", o, err)
	}
	up, b := blob(1<<20, filepath.Join(f.Nodes[2].Home, "file"))
	if err := c.Put(t.Context(), up); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(up.Path); err != nil || !bytes.Equal(got, b) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestOpenSSHNodeGoesDown(t *testing.T) { testOpenSSHNodeGoesDown(t, native) }

func testOpenSSHNodeGoesDown(t *testing.T, by way) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	c := dial(t, by.quick(), fleetTarget(f, 0))
	err := c.Run(t.Context(), remote.Command{Argv: []string{"sh", "-c", "echo on; sleep 60"}, Stdout: writerFunc(func(b []byte) (int, error) {
		go f.Stop(0)
		return len(b), nil
	})})
	wantError(t, err, remote.ErrLost, "while running a command", "reboot")
	for deadline := time.Now().Add(time.Minute); f.Nodes[0].Pid() != 0 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	_, err = by.quick().Dial(t.Context(), fleetTarget(f, 0))
	wantError(t, err, remote.ErrDial, "connection refused$", "sshd")
}

// sshd delivers signals to the programs of any user but root: such a program ends with its
// command. For root the program is abandoned, as documented.
func TestOpenSSHCancelEndsTheProgram(t *testing.T) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	c := dial(t, native.quick(), fleetTarget(f, 0))
	ctx, cancel := context.WithCancel(t.Context())
	var pid int
	err := c.Run(ctx, remote.Command{Argv: []string{"sh", "-c", "echo $$; exec sleep 60"}, Stdout: writerFunc(func(b []byte) (int, error) {
		pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		cancel()
		return len(b), nil
	})})
	if !errors.Is(err, context.Canceled) || pid == 0 {
		t.Fatalf("got %v, process %d", err, pid)
	}
	if os.Geteuid() == 0 {
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			t.Errorf("the program of root's session, %d: %v; want that it still runs", pid, err)
		}
		return
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d still runs", pid)
		}
	}
}

// A real full disk: a file that cannot fit, and a file whose space another writer takes during
// the upload.
func TestOpenSSHFullDisk(t *testing.T) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	disk := filepath.Join(f.Nodes[0].Dir, "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk).CombinedOutput(); err != nil {
		t.Skipf("a small file system cannot be mounted here: %s", out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", disk).CombinedOutput(); err != nil {
			t.Errorf("umount: %s", out)
		}
	})
	c := dial(t, native.quick(), fleetTarget(f, 0))
	up, _ := blob(5<<20, filepath.Join(disk, "big"))
	wantError(t, c.Put(t.Context(), up), remote.ErrNoSpace, "needs 5.0 MiB, but only 4.0 MiB is free", "df -h")

	up, _ = blob(3<<20, filepath.Join(disk, "big"))
	taken := false
	up.Progress = func(int64) {
		if !taken {
			taken = true
			if err := os.WriteFile(filepath.Join(disk, "other"), make([]byte, 2<<20), 0o600); err != nil {
				t.Error(err)
			}
		}
	}
	wantError(t, c.Put(t.Context(), up), remote.ErrNoSpace, "needs 3.0 MiB", "df -h")
	noParts(t, disk)
}

func TestOpenSSHNoRight(t *testing.T) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	c := dial(t, native.quick(), fleetTarget(f, 0))
	up, _ := blob(10, "/sys/dsbuild-test") // not even root may create a file there
	if err := c.Put(t.Context(), up); err == nil || !strings.Contains(err.Error(), "permission denied for ") {
		t.Errorf("got %v", err)
	}
}

// An SFTP server that only reads, or refuses some requests, is no obstacle: a program receives the file, from where SFTP
// came to.
func TestOpenSSHLimitedSFTP(t *testing.T) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	for _, limit := range []string{"-R", "-P fsetstat,setstat", "-P write", "-P rename,posix-rename,remove", "-P lstat,stat", "-P realpath"} {
		configure(t, f, 0, "Subsystem sftp internal-sftp "+limit)
		c := dial(t, native.quick(), fleetTarget(f, 0))
		for i := range 2 {
			up, want := blob(100<<10, filepath.Join(f.Nodes[0].Home, fmt.Sprint("file", i)))
			sent := int64(0)
			up.Progress = func(n int64) { sent += n }
			if err := c.Put(t.Context(), up); err != nil {
				t.Errorf("%s: %v", limit, err)
				continue
			}
			got, err := os.ReadFile(up.Path)
			if st, no := os.Stat(up.Path); no != nil || err != nil || !bytes.Equal(got, want) || st.Mode().Perm() != 0o640 || sent != up.Size {
				t.Errorf("%s: %d bytes, told of %d of %d, %v, %v", limit, len(got), sent, up.Size, st.Mode(), err)
			}
		}
		noParts(t, f.Nodes[0].Home)
		// A folder that is not writable is told as one.
		up, _ := blob(10, "/sys/dsbuild-test")
		if err := c.Put(t.Context(), up); err == nil || !strings.Contains(err.Error(), "creating a file in /sys: permission denied for ") || strings.Contains(err.Error(), "SFTP") {
			t.Errorf("%s: a folder without the right: %v", limit, err)
		}
		c.Close()
	}
	// If neither way is open, the error has both reasons.
	configure(t, f, 0, "Subsystem sftp internal-sftp -R", "ForceCommand case $SSH_ORIGINAL_COMMAND in internal-sftp*) exec /usr/lib/openssh/sftp-server -R;; esac; echo no shell here >&2; exit 1")
	up, _ := blob(10, filepath.Join(f.Nodes[0].Home, "file"))
	err := dial(t, native.quick(), fleetTarget(f, 0)).Put(t.Context(), up)
	if err == nil || !strings.Contains(err.Error(), "no shell here") || !strings.Contains(err.Error(), "; by SFTP: creating a file in") {
		t.Errorf("both ways: %v", err)
	}
}
