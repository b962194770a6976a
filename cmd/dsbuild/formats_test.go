//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
)

// Real nodes are reached whatever the notation of the inventory: what Ansible's variables say is enough,
// a jump host's ProxyCommand among them, and where hostfiles and node expressions say no more than
// names, ~/.ssh/config does.
func TestFormatsReachRealNodes(t *testing.T) {
	fleet := nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.FakeTorch})
	ansible, err := python.Environment(t.Context(), python.EnvironmentOptions{Packages: []string{python.Ansible}, Log: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Join(ansible, "bin")+":"+os.Getenv("PATH"))
	home := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(home, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// verify is in words what verify finds: of a node its status, Python and torch.
	verify := func(inv string) string {
		t.Helper()
		out, _ := program(t, home, 3, "verify", inv, "--json") // no DeepSpeed anywhere
		var r report.Report
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, n := range r.Nodes {
			if n.Facts == nil {
				t.Fatalf("%s: %s at %s: %s", n.Name, n.Status, n.Step, n.Error)
			}
			all = append(all, fmt.Sprintf("%s %s torch %q", n.Name, n.Status, n.Facts.Torch))
		}
		return strings.Join(all, "\n")
	}
	want := verify(fleet.Inventory)
	if !strings.Contains(want, "node2 differs torch \""+nodes.FakeTorchVersion) {
		t.Fatalf("got %s", want)
	}
	ini := "[gpu]\n"
	for _, n := range fleet.Nodes {
		ini += fmt.Sprintf("%s ansible_host=%s ansible_port=%d dsbuild_python=%s\n", n.Name, n.Address, n.Port, n.Python)
	}
	ini += fmt.Sprintf("[gpu:vars]\nansible_user=%s\nansible_ssh_private_key_file=%s\nansible_password=hunter2\n", fleet.User, fleet.IdentityFile)
	args := "-o UserKnownHostsFile=" + fleet.KnownHosts
	jump := fmt.Sprintf(`-o ProxyCommand="ssh -F none -i %s -o UserKnownHostsFile=%s -p %d -W %%h:%%p -q %s@%s"`,
		fleet.IdentityFile, fleet.KnownHosts, fleet.Nodes[0].Port, fleet.User, fleet.Nodes[0].Address)
	for name, more := range map[string]string{"direct.ini": "", "behind.ini": " " + jump} {
		write(name, ini+"ansible_ssh_common_args="+args+more+"\n")
		if got := verify(name); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
	}

	config := ""
	for _, n := range fleet.Nodes {
		config += fmt.Sprintf("Host %s\n  HostName %s\n  Port %d\n  User %s\n  IdentityFile %s\n  UserKnownHostsFile %s\n", n.Name, n.Address, n.Port, fleet.User, fleet.IdentityFile, fleet.KnownHosts)
	}
	write(".ssh/config", config)
	write("hostfile", "node1 slots=8\nnode2 slots=8\n")
	for _, inv := range []string{"hostfile", "node[1-2]"} {
		if got := verify(inv); !strings.HasPrefix(got, "node1 differs ") || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: got\n%s", inv, got)
		}
	}
}
