//go:build linux

package remote_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// A process that cannot open more files has not been refused by a node.
func TestTooManyOpenFiles(t *testing.T) {
	target := sshtest.Start(t, sshtest.Options{}).Target()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("not read"), 0o600); err != nil {
		t.Fatal(err)
	}
	target.IdentityFiles = []string{key}
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := native.quick().Dial(t.Context(), target)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	wantError(t, err, remote.ErrDial, "file limit of the control node reached: .*too many open files", "ulimit -n")
}
