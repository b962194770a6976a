//go:build linux

package nodestest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/debian"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
)

// Sudo makes sure that this machine has sudo, and that the test runs as root, which may become
// any other user. Otherwise it skips the test, but fails it if the variable CI is true.
func Sudo(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		needs.Missing(tb, "this test needs root")
	}
	if err := debian.Ensure(tb.Context(), debian.OnPath("sudo"), "sudo"); err != nil {
		needs.Missing(tb, "installing sudo: %v", err)
	}
}

// SudoUser is the user of SudoShell's commands, and SudoPassword the password that sudo asks
// for.
const (
	SudoUser     = "daemon"
	SudoPassword = "secret"
)

// SudoShell is a shell in which SudoUser has real sudo with these lines in its sudoers. It has
// its own /etc/sudoers and /etc/shadow, which the machine does not see.
func SudoShell(tb testing.TB, sudoers string) []string {
	tb.Helper()
	Sudo(tb)
	if out, err := exec.CommandContext(tb.Context(), "unshare", "-m", "true").CombinedOutput(); err != nil {
		needs.Missing(tb, "unshare: %s", out)
	}
	u, err := user.Lookup(SudoUser)
	if err != nil {
		tb.Fatal(err)
	}
	hash, err := exec.CommandContext(tb.Context(), "openssl", "passwd", "-6", SudoPassword).Output()
	if err != nil {
		tb.Fatalf("openssl passwd: %v", err)
	}
	dir := tb.TempDir()
	own := func(name, text string, mode os.FileMode) {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(file, []byte(text), mode), os.Chmod(file, mode)); err != nil {
			tb.Fatal(err)
		}
	}
	const aged = ":19000:0:99999:7:::\n"
	own("shadow", SudoUser+":"+strings.TrimSpace(string(hash))+aged+"root:*"+aged, 0o600)
	own("sudoers", "Defaults env_reset, lecture=always, passwd_tries=3\n"+sudoers+"\n", 0o440)
	script := fmt.Sprintf(`mount --bind %[1]s/shadow /etc/shadow && mount --bind %[1]s/sudoers /etc/sudoers || exit 99
cd / && exec setpriv --reuid=%[2]s --regid=%[3]s --clear-groups /bin/sh -c "$1"`, dir, u.Uid, u.Gid)
	return []string{"unshare", "-m", "sh", "-c", script, "sh"}
}
