package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/inventory"
)

// hintsOf returns the hints of a command line.
func hintsOf(t *testing.T, args ...string) hints {
	t.Helper()
	cmd, rest, err := newRootCommand(&app{stdin: strings.NewReader(""), stdout: t.Output(), stderr: t.Output()}).Find(args)
	if err == nil {
		err = cmd.ParseFlags(rest)
	}
	if err != nil {
		t.Fatal(err)
	}
	return newHints(cmd, cmd.Flags().Args())
}

// A command in a hint has the inventory, the wheel, the connection and the nodes of the running command, and can be
// typed in a shell. It takes nothing over that would change more than the hint is about.
func TestCommandsInHints(t *testing.T) {
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	sum := func(text string) string {
		digest := sha256.Sum256([]byte(text))
		return hex.EncodeToString(digest[:])
	}
	const name = "deepspeed-0.19.8-py3-none-any.whl"
	for _, err := range []error{os.WriteFile("c.yaml", nil, 0o600), os.Mkdir("dist", 0o755), os.WriteFile("train.yaml", nil, 0o600), os.WriteFile(filepath.Join("dist", name), []byte("meant"), 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ running, hint, nodes, want string }{
		{"deploy cluster.yaml --wheel dist --force --in-use wait=2h --serial 1 --json", fault.Deploy().String(), "gpu1", "dsbuild deploy cluster.yaml --wheel " + here + "/dist --in-use wait=2h --limit gpu1"},
		{"deploy cluster.yaml", "again: " + fault.Deploy("--force").String() + "; or not", "gpu[1-2],cpu1", "again: dsbuild deploy cluster.yaml --wheel " + here + "/dist --force --limit 'gpu[1-2],cpu1'; or not"},
		{"deploy gpu[1-4] --user eve --python /opt/venv/bin/python --ssh openssh --limit gpu1", fault.Deploy().String(), "gpu1", "dsbuild deploy 'gpu[1-4]' --wheel " + here + "/dist --ssh openssh --user eve --python /opt/venv/bin/python --limit gpu1"},
		{"verify c.yaml --verify files --limit x --report r.json", fault.Command{Do: "deploy", Wheel: &fault.WheelFile{Path: "dist/a.whl"}}.String(), "n/py311", "dsbuild deploy c.yaml --wheel " + here + "/dist/a.whl --verify files --limit n/py311"},
		{"verify c.yaml --verify compute --limit x --report r.json", fault.Command{Do: "deploy", Wheel: &fault.WheelFile{Path: "dist/a.whl"}}.String(), "n/py311", "dsbuild deploy c.yaml --wheel " + here + "/dist/a.whl --limit n/py311"},
		{"verify c.yaml", fault.Command{Do: "deploy", Wheel: &fault.WheelFile{Name: name, SHA256: sum("meant")}}.String(), "n", "dsbuild deploy c.yaml --wheel " + here + "/dist/" + name + " --limit n"},
		{"verify c.yaml", fault.Command{Do: "deploy", Wheel: &fault.WheelFile{Name: name, SHA256: sum("another")}}.String(), "n", "dsbuild deploy c.yaml --wheel DIR/" + name + " --limit n (DIR: the directory of this wheel, sha256 " + sum("another")[:12] + ")"},
		{"verify c.yaml", fault.Command{Do: "deploy", Wheel: &fault.WheelFile{}}.String(), "n", "dsbuild deploy c.yaml --wheel WHEEL --limit n (WHEEL: the wheel that these nodes should run)"},
		{"verify c.yaml", fault.Command{Do: "ship", Flags: []string{"--deepspeed", "0.19.8"}}.String(), "n", "dsbuild ship c.yaml --deepspeed 0.19.8 --limit n"},
		{"ship c.yaml --gpu RTX_4090 --ops cpu_adam --no-cache --dry-run", fault.Deploy().String(), "n", "dsbuild ship c.yaml --gpu RTX_4090 --ops cpu_adam --no-cache --limit n"},
		{"rollback c.yaml --in-use ignore", fault.Command{Do: "rollback", Nodes: []string{"leader"}}.String(), "follower", "dsbuild rollback c.yaml --in-use ignore --limit leader"},
		{"env verify c.yaml --lock train.lock", fault.Deploy("--force").String(), "n", "dsbuild env deploy c.yaml --lock train.lock --force --limit n"},
		{"env verify gpu[1-2]", fault.Deploy().String(), "gpu1", "dsbuild env deploy 'gpu[1-2]' --lock " + here + "/environment.lock --limit gpu1"},
		{"deploy gpu[1-2] --wheel /w --policy p.yaml", fault.Deploy().String(), "gpu1", "dsbuild deploy 'gpu[1-2]' --wheel /w --policy " + here + "/p.yaml --limit gpu1"},
		{"deploy c.yaml --wheel /w --policy p.yaml --limit cpu1", fault.Deploy().String(), "", "dsbuild deploy c.yaml --wheel /w --policy p.yaml --limit cpu1"},
		{"env deploy c.yaml --lock train.lock", fault.Command{Do: "env lock"}.String(), "n", "dsbuild env lock train.yaml --for c.yaml"},
		{"env deploy c.yaml --lock sub/x.lock", fault.Command{Do: "env lock", Flags: []string{"--upgrade"}}.String(), "n", "dsbuild env lock FILE -o sub/x.lock --for c.yaml --upgrade (FILE: the environment file)"},
		{"env deploy c.yaml --limit n", fault.SetFolder("X").String(), "n", "set folder: in environment.yaml to X, and re-lock: dsbuild env lock environment.yaml --for c.yaml"},
		{"ship c.yaml --env my.yml", fault.SetInterpreter("X").String(), "n", "set interpreter: in my.yml to X, and re-lock: rerun the command"},
		{"env deploy c.yaml --serial 1 --gate x", fault.Command{Do: "rollback", Flags: []string{"--run", "r"}}.String(), "", "dsbuild env rollback c.yaml --run r"},
		{"wheel --for c.yaml", fault.Command{Do: "wheel"}.String(), "", "dsbuild wheel --for c.yaml"},
		{"env lock build.yaml", fault.Command{Do: "ship", Flags: []string{"--env", "my file"}}.String(), "", "dsbuild ship INVENTORY --env 'my file'"},
		{"verify c.yaml --via slurm --partition gpu --salloc=--reservation=maint", fault.Command{Do: "verify"}.String(), "n", "dsbuild verify c.yaml --via slurm --partition gpu --salloc --reservation=maint --limit n"},
		{"verify c.yaml", "df -h /opt", "n", "df -h /opt"},
	} {
		if got := hintsOf(t, strings.Fields(c.running)...).expand(c.hint, c.nodes); got != c.want {
			t.Errorf("dsbuild %s:\n%s\nwant\n%s", c.running, got, c.want)
		}
	}
	h := hintsOf(t, "verify", "my cluster's.yaml")
	if got, want := h.expand(fault.Command{Do: "verify"}.String(), ""), `dsbuild verify 'my cluster'\''s.yaml'`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A hint about a setting names the key of the inventory's format, or the flag where the format has none, and what is set now.
func TestSettingsInHints(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"own.yaml": "nodes: [{hosts: 'gpu[1-2]', python: /opt/venv/bin/python}, {hosts: cpu1, sudo: true}]\n",
		"hostfile": "gpu1 slots=8\ncpu1 slots=8\n",
		"list.json": `{"_meta": {"hostvars": {"gpu1": {"dsbuild_python": "/opt/venv/bin/python"}, "cpu1": {}}},
			"all": {"hosts": ["gpu1", "cpu1"]}}`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	python, user := fault.Set("python", "X").String(), fault.Set("user", "Y").String()
	for _, c := range []struct{ inventory, flags, hint, nodes, want string }{
		{"own.yaml", "", python, "gpu[1-2]", "set python: in own.yaml to X (now /opt/venv/bin/python)"},
		{"own.yaml", "", python, "cpu1", "set python: in own.yaml to X (now python3 on the node's PATH)"},
		{"own.yaml", "--python /usr/bin/python3.12", python, "cpu1", "set python: in own.yaml to X (now --python /usr/bin/python3.12)"},
		{"own.yaml", "", python, "gpu1,cpu1", "set python: in own.yaml to X"},
		{"own.yaml", "", user, "gpu1", "set user: in own.yaml to Y"},
		{"own.yaml", "", "run on the node: chmod u+w /x", "gpu1", "run on the node: chmod u+w /x"},
		{"own.yaml", "", "install them on the node: P", "cpu1", "install them on the node: P; run commands on the node as root: sudo -u root COMMAND"},
		{"own.yaml", "", "install them on the node: P", "gpu1,cpu1", "install them on the node: P"},
		{"own.yaml", "", "run on the node: sudo -u root true", "cpu1", "run on the node: sudo -u root true"},
		{"own.yaml", "", fault.Set("address", "X").String(), "gpu1", "set address: in own.yaml to X"},
		{"list.json", "", python, "gpu1", "set dsbuild_python in list.json to X (now /opt/venv/bin/python)"},
		{"list.json", "", user, "gpu1", "set ansible_user in list.json to Y"},
		{"list.json", "", fault.Set("identity_file", "X").String(), "gpu1", "set ansible_ssh_private_key_file in list.json to X"},
		{"list.json", "", fault.Set("sudo", "X").String(), "gpu1", "set dsbuild_sudo in list.json to X"},
		{"list.json", "", fault.Set("known_hosts", "X").String(), "gpu1", "set UserKnownHostsFile in ~/.ssh/config to X"},
		{"hostfile", "", python, "gpu1", "set --python to X (now python3 on the node's PATH)"},
		{"hostfile", "", user, "gpu1", "set --user to Y"},
		{"hostfile", "", fault.Set("port", "X").String(), "gpu1", "set Port in ~/.ssh/config to X"},
		{"hostfile", "", fault.Set("sudo", "X").String(), "gpu1", "set sudo: in a YAML inventory to X"},
		{"gpu[1-2]", "--python /x/python", python, "gpu1", "set --python to X (now --python /x/python)"},
	} {
		h := hintsOf(t, append([]string{"verify", c.inventory}, strings.Fields(c.flags)...)...)
		opt := inventory.Options{Python: h.flags.Lookup("python").Value.String()}
		var err error
		if h.nodes, err = inventory.Open(context.Background(), c.inventory, opt); err != nil {
			t.Fatal(err)
		}
		if got := h.expand(c.hint, c.nodes); got != c.want {
			t.Errorf("%s %s: %s\nwant %s", c.inventory, c.flags, got, c.want)
		}
	}
}
