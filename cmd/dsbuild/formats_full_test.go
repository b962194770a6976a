//go:build full

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/python"
)

// Where ansible-inventory is installed, dsbuild reads what only it can: variables
// of other files, what is encrypted, programs, folders.
func TestFullFleetAnsibleInventory(t *testing.T) {
	ansible, err := python.Environment(t.Context(), python.EnvironmentOptions{Packages: []string{python.Ansible}, Log: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Join(ansible, "bin")+":"+os.Getenv("PATH"))
	dir := t.TempDir()
	t.Chdir(dir)
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("password", "open sesame\n", 0o600)
	write("hosts", "[gpu]\ngpu[01:02]\n[cpu]\ncpu1\n", 0o600)
	write("group_vars/all.yml", "ansible_user: train\n", 0o600)
	write("group_vars/gpu/python.yml", "dsbuild_python: /opt/venv/bin/python\ndsbuild_envs: [{name: a}, {name: b, env: {X: y}}]\n", 0o600)
	vault := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "ansible-vault", append(args, "--vault-password-file", "password")...).Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	write("host_vars/cpu1.yml", "ansible_host: 10.1.2.3\n", 0o600)
	vault("encrypt", "host_vars/cpu1.yml")
	write("single", "all:\n  hosts:\n    cpu1:\n      "+strings.ReplaceAll(vault("encrypt_string", "10.1.2.3", "--name", "ansible_user"), "\n", "\n      ")+"\n", 0o600)
	write("dynamic/all.sh", "#!/bin/sh\necho '{\"_meta\": {\"hostvars\": {\"made\": {\"ansible_port\": 2222}}}, \"g\": {\"hosts\": [\"made\"]}}'\n", 0o755)
	write("dynamic/more.ini", "[g]\nwritten\n", 0o600)

	nodes := func(wantCode int, args ...string) (string, string) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), append([]string{"nodes"}, args...), strings.NewReader(""), &stdout, &stderr); code != wantCode {
			t.Fatalf("%q: exit %d\n%s%s", args, code, &stdout, &stderr)
		}
		return stdout.String(), stderr.String()
	}
	// Ansible without the password says so, and nothing is guessed.
	if _, said := nodes(2, "hosts"); !strings.Contains(said, "ansible-inventory: ") || !strings.Contains(said, "vault") {
		t.Errorf("without the password: %s", said)
	}
	t.Setenv("ANSIBLE_VAULT_PASSWORD_FILE", "password")
	table, _ := nodes(0, "hosts")
	want := [][]string{
		{"gpu01/a", "gpu01", "-", "train", "/opt/venv/bin/python", "gpu"},
		{"gpu01/b", "gpu01", "-", "train", "/opt/venv/bin/python", "gpu"},
		{"gpu02/a", "gpu02", "-", "train", "/opt/venv/bin/python", "gpu"},
		{"gpu02/b", "gpu02", "-", "train", "/opt/venv/bin/python", "gpu"},
		{"cpu1", "10.1.2.3", "-", "train", "python3", "cpu"},
	}
	mustBeTable(t, table, want)
	for _, c := range []struct {
		name string
		want [][]string
	}{
		{"dynamic/all.sh", [][]string{{"made", "made", "2222", "train", "python3", "g"}}},
		{"dynamic", [][]string{{"made", "made", "2222", "train", "python3", "g"}, {"written", "written", "-", "train", "python3", "g"}}},
	} {
		table, _ = nodes(0, c.name)
		mustBeTable(t, table, c.want)
	}
	if _, said := nodes(2, "single"); !strings.Contains(said, "cpu1: ansible_user is encrypted") {
		t.Errorf("a single value: %s", said)
	}
	t.Log("result: group_vars, host_vars, a vault, a dynamic inventory and a folder are read by way of ansible-inventory")
}

func mustBeTable(t *testing.T, table string, want [][]string) {
	t.Helper()
	var got [][]string
	for line := range strings.Lines(table) {
		got = append(got, strings.Fields(line))
	}
	if len(got) == 0 || !slices.EqualFunc(got[1:], want, slices.Equal) {
		t.Errorf("got\n%s\nwant %v", table, want)
	}
}
