//go:build linux

package nodestest

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// uname says that the machine is aarch64.
const uname = `#define _GNU_SOURCE
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>
int uname(struct utsname *found) {
	int failed = syscall(SYS_uname, found);
	if (!failed) strcpy(found->machine, "aarch64");
	return failed;
}
`

// ClaimArm returns a library for LD_PRELOAD: the programs of a node that has it in its environment believe that the
// machine is aarch64. They are those of this machine nevertheless.
func ClaimArm(tb testing.TB) string {
	tb.Helper()
	library := filepath.Join(tb.TempDir(), "claim-aarch64.so")
	cmd := exec.CommandContext(tb.Context(), "gcc", "-shared", "-fPIC", "-o", library, "-x", "c", "-")
	cmd.Stdin = strings.NewReader(uname)
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("gcc: %v\n%s", err, out)
	}
	return library
}
