//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
)

// Nodes that only OpenSSH leads to are deployed to and verified as any other: behind a
// ProxyCommand, and by a connection that ssh has already where no login is possible. The node allows one session for
// each connection, SFTP only reads, and its login shell is strict.
func TestDeployByOpenSSH(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ssh"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	fleet := nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.FakeTorch, QuickPip: true})
	bastion, node := fleet.Nodes[0], fleet.Nodes[1]
	home, err := os.MkdirTemp("", "o") // a socket's name is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	write := func(name, format string, args ...any) {
		t.Helper()
		file := filepath.Join(home, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, fmt.Appendf(nil, format, args...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bashrc := "cd \"$HOME\"\nset -eu\necho welcome\n"
	if err := errors.Join(fleet.Configure(1, "MaxSessions 1", "Subsystem sftp internal-sftp -R"),
		os.WriteFile(filepath.Join(node.Home, ".bashrc"), []byte(bashrc), 0o600)); err != nil {
		t.Fatal(err)
	}
	write("inv.yaml", "nodes:\n  - hosts: gpu1\n    python: %s\n    setup: \"export GREETING=hello\"\n", node.Python)
	write(".ssh/config", `
Host gpu1
  HostName gpu1.invalid
  HostKeyAlias [%s]:%d
  User %s
  IdentityFile %s
  UserKnownHostsFile %s
  ControlPath %s/cm
  ProxyCommand ssh -F none -i %s -o UserKnownHostsFile=%s -o BatchMode=yes -p %d -W %s:%d %s@%s
`, node.Address, node.Port, fleet.User, fleet.IdentityFile, fleet.KnownHosts, home,
		fleet.IdentityFile, fleet.KnownHosts, bastion.Port, node.Address, node.Port, fleet.User, bastion.Address)

	store(t, home, plannedFor(t, home, "inv.yaml"))
	out, _ := program(t, home, 0, "wheel", "--for", "inv.yaml", "--ops", "cpu_adam", "--json", "-o", "out")
	var doc wheelsResult
	if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.Wheels) != 1 {
		t.Fatalf("%v\n%s", err, out)
	}
	path := doc.Wheels[0].Path
	ok := func(args ...string) report.Node {
		t.Helper()
		out, _ := program(t, home, 0, append(args, "--wheel", path, "--json")...)
		var r report.Report
		if err := json.Unmarshal([]byte(out), &r); err != nil || r.Summary.OK != 1 {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
		return r.Nodes[0]
	}
	if n := ok("deploy", "inv.yaml"); !n.Changed {
		t.Errorf("deploy: %+v", n)
	}
	ok("verify", "inv.yaml")
	ok("verify", "inv.yaml", "--ssh", "openssh")
	out, _ = program(t, home, 3, "verify", "inv.yaml", "--ssh", "native", "--json")
	if !strings.Contains(out, "ProxyCommand for gpu1 requires OpenSSH") {
		t.Errorf("--ssh native: %s", out)
	}

	// dsbuild's own client reaches it directly.
	program(t, home, 0, "deploy", fleet.Inventory, "--limit", node.Name, "--wheel", path, "--force", "--ssh", "native")

	if err := fleet.Configure(1); err != nil {
		t.Fatal(err)
	}
	master := exec.CommandContext(t.Context(), "ssh", "-F", filepath.Join(home, ".ssh", "config"), "-M", "-N", "gpu1")
	if err := master.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		master.Process.Kill()
		master.Wait()
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Lstat(filepath.Join(home, "cm")); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no master")
		}
	}
	if err := os.WriteFile(filepath.Join(node.Dir, "authorized_keys"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	program(t, home, 0, "rollback", "inv.yaml")
	if n := ok("deploy", "inv.yaml"); !n.Changed {
		t.Errorf("deploy by a connection that is there: %+v", n)
	}
	ok("verify", "inv.yaml")
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "dsbuild-ssh-*")); err != nil || len(left) > 0 {
		t.Logf("folders %q, %v", left, err) // others' tests have some
	}
}
