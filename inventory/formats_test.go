package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/inventory"
)

// list is an inventory in a line: name@address:port of each host.
func list(inv *inventory.Inventory) string {
	var all []string
	for _, h := range inv.Hosts {
		s := h.Name
		if h.Address != h.Node {
			s += "@" + h.Address
		}
		if h.Port != 0 {
			s += fmt.Sprintf(":%d", h.Port)
		}
		if h.Slots != 0 {
			s += fmt.Sprintf("*%d", h.Slots)
		}
		all = append(all, s)
	}
	return strings.Join(all, " ")
}

// recorded answers for ansible-inventory, with what it printed for the files of
// testdata/ansible (TestAsAnsible of inventory/ansible asks the program again).
func recorded(_ context.Context, path string) ([]byte, error) { return os.ReadFile(path + ".json") }

// ofAnsible reads an inventory of testdata/ansible as ansible-inventory reads it.
func ofAnsible(t *testing.T, name string) *inventory.Inventory {
	t.Helper()
	inv, err := inventory.Open(t.Context(), filepath.Join("testdata", "ansible", name), inventory.Options{Ansible: recorded})
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

// What a file is shows in its contents; only what could be anything is YAML if
// its name says so.
func TestRecognised(t *testing.T) {
	for _, c := range []struct{ text, path, want string }{
		{"gpu01 slots=8\n", "-", "gpu01*8"},
		{"# a hostfile\n\ngpu01 slots=8# eight\n\tuser@gpu02\tslots=4\r\n", "hosts.yaml", "gpu01*8 gpu02*4"},
		{"gpu[01-02],cpu1\n", "-", "gpu01 gpu02 cpu1"},
		{"a,b\nc\n# end\nx[1-2]\n", "-", "a b c x1 x2"},
		{"gpu01\ngpu02\n", "-", "gpu01 gpu02"},
		{"gpu01:8\n# MPI's machine file\ngpu02:4\t# the old one\n", "-", "gpu01*8 gpu02*4"},
		{"gpu01\ngpu01\ngpu02\n# of PBS\ngpu02\n", "nodefile", "gpu01*2 gpu02*2"},
		{"10.0.0.1:8\ngpu[03-04]:2\n", "machinefile", "10.0.0.1*8 gpu03*2 gpu04*2"},
		{"nodes: [{hosts: x}]", "hosts.ini", "x"},
		{"{nodes: [{hosts: x}]}", "-", "x"},
		{`{"nodes": [{"hosts": "x"}]}`, "x.json", "x"},
		{"---\nnodes:\n- hosts: x\n", "-", "x"},
		{`{"_meta": {"hostvars": {}}, "g": {"hosts": ["x"]}}`, "-", "x"},
		{`{"_meta": {"hostvars": {"x": {"ansible_host": "h"}}}}`, "x.json", "x@h"},
	} {
		inv, err := inventory.Read(strings.NewReader(c.text), c.path)
		if err != nil {
			t.Errorf("%q as %s: %v", c.text, c.path, err)
		} else if got := list(inv); got != c.want {
			t.Errorf("%q as %s: %s, want %s", c.text, c.path, got, c.want)
		}
	}
}

// What an Ansible inventory is goes to ansible-inventory.
func TestTakenForAnsible(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"all: {hosts: {x: }}", "nodes: {hosts: {x: }}", "'my group':\n  hosts:\n    x:\n", "plugin: aws_ec2", "all: {hosts: {x: {}, y: {}}}",
		"gpu[01:02]\n", "\ufeff[a]\nx slots=8\n", "; ini\nx ansible_host=1.2.3.4\n", "x slots=8 ansible_host=1.2.3.4\n", "[g:vars]\na=b\n", "word\nanother a=b\n",
	} {
		_, err := inventory.Read(strings.NewReader(text), "hosts")
		want := "hosts: cannot read the inventory: detected an Ansible inventory, but ansible-inventory is not installed"
		if err == nil || err.Error() != want || !strings.HasPrefix(fault.Hint(err), "install it (pip install ansible-core), or run ") {
			t.Errorf("%q: got %v, hint %q", text, err, fault.Hint(err))
		}
		_, err = inventory.Read(strings.NewReader(text), "-")
		if err == nil || !strings.HasSuffix(err.Error(), "detected an Ansible inventory, which cannot be read from standard input") || !strings.HasPrefix(fault.Hint(err), "pass the file, or run ") {
			t.Errorf("%q from standard input: got %v, hint %q", text, err, fault.Hint(err))
		}
	}
}

// What cannot be read says what it was taken for.
func TestTakenFor(t *testing.T) {
	for text, want := range map[string]string{
		"x slots=8\ny\n":             "as a DeepSpeed hostfile",
		"x\nx\ny\n":                  "x:2:1: duplicate node x: first defined at x:1:1",
		"gpu01 8\ngpu02 8\n":         "as a DeepSpeed hostfile (host slots=N):\nx:1:1: invalid line: want NAME slots=N",
		"gpu01 slot=8\n":             "x:1:1: invalid line: want NAME slots=N",
		"gpu01 max-slots=8\ngpu02\n": "x:1:1: invalid line: want NAME slots=N",
		"10.0.0.1 gpu01\n":           "x:1:1: invalid line: want NAME slots=N",
		"x[1-\n":                     "as a list of hosts",
		`{"_meta": {}, "g": 1}`:      "as the output of ansible-inventory --list",
		"nodes: [{hosts: x, y: 1}]":  "x:1:20: unknown key",
		"gpu01:8\ngpu02:2222\n":      "x:2:7: invalid number of GPUs 2222 for gpu02: looks like a port",
		"gpu01:22\n":                 "x:1:7: invalid number of GPUs 22 for gpu01",
		"gpu01:0\n":                  "x:1:7: invalid number of GPUs 0 for gpu01",
	} {
		_, err := inventory.Read(strings.NewReader(text), "x")
		var wrong *inventory.Error
		if err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, &wrong) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestNamesThatAreNoFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"inventory.yaml", "hosts"} {
		if err := os.WriteFile(name, []byte("nodes: [{hosts: x}]"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile("a,b", []byte("nodes: [{hosts: a-file}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"gpu[01-03]": "gpu01 gpu02 gpu03", "gpu[1-2],cpu1": "gpu1 gpu2 cpu1", "x[1-2]y[3]": "x1y3 x2y3", "b,a": "b a", "gpu[07]": "gpu07",
		"a,b": "a-file", // a file goes first
	} {
		inv, err := inventory.Open(t.Context(), name, inventory.Options{})
		if err != nil || list(inv) != want || inv.Path != name {
			t.Errorf("%s: %v, error %v", name, inv, err)
		}
	}
	for name, want := range map[string]string{
		"inventroy.yaml":  "did you mean inventory.yaml?",
		"./inventroy.yml": "did you mean inventory.yaml?",
		"gpu01":           "pass a file, - for standard input, slurm:PARTITION, or a node expression: gpu[01-16], gpu1,gpu2, or gpu[01] for one node",
		"node":            "pass a file, - for standard input, slurm:PARTITION, or a node expression: gpu[01-16], gpu1,gpu2, or gpu[01] for one node",
		"x/gpu[1-2]":      "pass a file, - for standard input, slurm:PARTITION, or a node expression: gpu[01-16], gpu1,gpu2, or gpu[01] for one node",
		"a.yaml,b.yaml":   "pass a file, - for standard input, slurm:PARTITION, or a node expression: gpu[01-16], gpu1,gpu2, or gpu[01] for one node",
		"":                "pass a file, - for standard input, slurm:PARTITION, or a node expression: gpu[01-16], gpu1,gpu2, or gpu[01] for one node",
	} {
		_, err := inventory.Open(t.Context(), name, inventory.Options{})
		var wrong *inventory.Error
		if !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &wrong) || fault.Hint(err) != want {
			t.Errorf("%s: %v\nhint: %s", name, err, fault.Hint(err))
		}
	}
	_, err := inventory.Open(t.Context(), "gpu[3-1],x", inventory.Options{})
	want := "gpu[3-1],x is neither a file nor a valid node expression:\nnode expression:1:5: descending range 3-1\n    1 | gpu[3-1],x\n      |     ^"
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
	if _, err := inventory.Open(t.Context(), "x[1-2],x1", inventory.Options{}); err == nil || !strings.Contains(err.Error(), "duplicate node x1 in this expression") {
		t.Errorf("got %v", err)
	}
}

// What Ansible's variables say.
func TestAnsibleVariables(t *testing.T) {
	t.Setenv("HOME", "/home/me")
	inv := ofAnsible(t, "variables.ini")
	type said struct{ name, address, user, key, jump, args, python, setup, prefix, env, groups string }
	var got []said
	for _, h := range inv.Hosts {
		got = append(got, said{
			h.Name, fmt.Sprintf("%s:%d*%d", h.Address, h.Port, h.Slots), h.User, h.IdentityFile, h.ProxyJump, strings.Join(h.SSHArgs, "|"), h.Python, h.Setup,
			strings.Join(h.ExecPrefix, "|"), fmt.Sprint(h.Env), strings.Join(h.Groups, ","),
		})
	}
	want := []said{
		{"gpu01", "gpu01:2222*0", "all", "", "", "", "python3", "", "", "map[]", "gpu"},
		{"gpu02", "gpu02:2222*0", "all", "", "", "", "python3", "", "", "map[]", "gpu"},
		{"a", "10.0.0.1:22*0", "u", "/home/me/key", "", "", "python3", "", "", "map[]", "gpu"},
		{"b", "b:0*0", "all", "", "", "-o|ProxyCommand=ssh -q -W %h:%p -p 2022 -l jump gate", "python3.11", "", "", "map[]", "gpu"},
		{"c", "c:0*0", "all", "", "", "-o|ControlMaster=auto|-o|ControlPersist 60s|-i|keys/id|-o|User=w|-l|x|-p|23|-o|ProxyJump=a@b:1,c", "python3", "", "", "map[]", "gpu"},
		{"d", "d:0*8", "all", "", "z", "", "/opt/venv/bin/python", "module load 'gcc'", "apptainer|exec|/my image.sif", "map[A:1 B:true C:x]", "gpu"},
		{"e/train", "e:0*0", "all", "", "", "-o|ProxyJump=none", "/t", "", "p|q r", "map[]", "gpu"},
		{"e/dev", "e:0*0", "all", "", "", "-o|ProxyJump=none", "python3", "s", "p|q r", "map[X:y]", "gpu"},
		{"f", "10:0*0", "1000", "", "", "-o|ProxyCommand=none", "python3", "", "", "map[]", "gpu"},
	}
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			t.Errorf("got %d:\n%v\nwant\n%v", i, got[min(i, len(got)-1)], want[i])
		}
	}
	if inv.Hosts[0].Position != filepath.Join("testdata", "ansible", "variables.ini") || len(inv.Notes) != 0 {
		t.Errorf("position %s, notes %v", inv.Hosts[0].Position, inv.Notes)
	}
}

// Ansible's become is sudo; dsbuild's own variable goes before it.
func TestAnsibleBecome(t *testing.T) {
	inv := ofAnsible(t, "become.ini")
	part, err := inv.Select("!h,!i")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, h := range part.Hosts {
		got = append(got, h.Name+"="+h.Sudo)
	}
	if want := "a=root b=ops c= d= e= f=ops g=root"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(part.Notes) != 1 || part.Notes[0].Node != "g" || !strings.Contains(part.Notes[0].Text, "sudo's prompts appear at the terminal") || strings.Contains(part.Notes[0].Text, "hunter2") {
		t.Errorf("notes: %v", part.Notes)
	}
	for limit, want := range map[string]string{"h": "only sudo is supported", "i": "a template"} {
		if _, err := inv.Select(limit); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", limit, err)
		}
	}
}

// What dsbuild does otherwise than Ansible is told, of the nodes that are selected.
func TestAnsibleNotes(t *testing.T) {
	inv := ofAnsible(t, "notes.ini")
	for limit, want := range map[string]string{"": "!w", "a,w": "a,w,!w"} { // a hint never selects other nodes
		_, err := inv.Select(limit)
		if err == nil || !strings.Contains(err.Error(), "only SSH is supported") || fault.Hint(err) != "exclude it: --limit '"+want+"'" {
			t.Errorf("--limit %q: %v, hint %q", limit, err, fault.Hint(err))
		}
	}
	if rest, err := inv.Select("a,w,!w"); err != nil || len(rest.Hosts) != 1 {
		t.Errorf("%v, %v", rest, err)
	}
	for limit, want := range map[string]string{
		"localhost": "ignoring ansible_connection=local: nodes are always reached over SSH; " +
			"ansible_python_interpreter is a template, which only an Ansible play can evaluate: using the default Python; set dsbuild_python to override it",
		"a": "ignoring ansible_ssh_pass: logins use key files and the SSH agent; " +
			"ignoring ansible_host_key_checking: host keys are always checked; " +
			"ignoring group c: a node has the same name",
		"b": `ignoring StrictHostKeyChecking=no: host keys are always checked; ignoring UserKnownHostsFile=/dev/null: host keys are always checked; ` +
			`ignoring option -w in ansible_ssh_common_args; ` +
			`ignoring group "x/y": --limit supports only letters, digits, '.', '_' and '-'`,
		"c": "ignoring ansible_ssh_private_key: logins use key files and the SSH agent; ignoring ansible_ssh_executable: the ssh on PATH is used",
	} {
		part, err := inv.Select(limit)
		if err != nil {
			t.Errorf("%s: %v", limit, err)
			continue
		}
		var got []string
		for _, r := range part.Notes {
			if r.Node != limit {
				t.Errorf("%s: a note about %s", limit, r.Node)
			}
			got = append(got, r.Text)
		}
		if joined := strings.Join(got, "; "); joined != want {
			t.Errorf("%s: got\n%s\nwant\n%s", limit, joined, want)
		}
	}
	all, err := inv.Select("!w")
	if err != nil || strings.Contains(fmt.Sprint(all.Notes), "hunter2") {
		t.Errorf("%v, %v", all.Notes, err)
	}
	if args := inv.Hosts[slices.IndexFunc(inv.Hosts, func(h inventory.Host) bool { return h.Name == "c" })].SSHArgs; !slices.Equal(args, []string{"-o", "UserKnownHostsFile=~/x"}) {
		t.Errorf("c has the arguments %q", args)
	}
}

// The number of GPUs of a hostfile may stand in a line of an Ansible inventory.
func TestAnsibleSlots(t *testing.T) {
	t.Parallel()
	inv, err := ofAnsible(t, "ssh.ini").Select("mpi")
	if err != nil || list(inv) != "mpi*4" {
		t.Errorf("got %v, %v", inv, err)
	}
}

// The variables that decide how a node is reached, and mistakes in them.
func TestBadAnsibleVariables(t *testing.T) {
	for _, name := range []string{"reach.ini", "reach.yml", "ssh.ini"} {
		t.Run(name, func(t *testing.T) {
			mustBeWrong(t, ofAnsible(t, name), nil, filepath.Join("testdata", "ansible", name+".golden"))
		})
	}
}

// ansible-inventory is asked about files and folders of Ansible's and about programs, and about nothing else.
func TestAnsibleIsAsked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	asked := ""
	answer, failure := `{"_meta": {"hostvars": {"x": {"ansible_port": 1}, "y": {"ansible_port": 0}}}, "g": {"hosts": ["x", "y"]}}`, error(nil)
	opt := inventory.Options{Stdin: strings.NewReader("own\n"), Ansible: func(_ context.Context, path string) ([]byte, error) {
		asked += filepath.Base(path) + " "
		return []byte(answer), failure
	}}
	for _, path := range []string{write("hosts", "[g]\nown\n", 0o600), write("a.yml", "all: {hosts: {own: }}", 0o600), write("dynamic", "#!/bin/sh\n", 0o755), dir} {
		inv, err := inventory.Open(t.Context(), path, opt)
		if err != nil || list(inv) != "x:1 y" || inv.Hosts[0].Position != path || inv.Path != path {
			t.Errorf("%s: %+v, %v", path, inv, err)
			continue
		}
		if _, err = inv.Select(""); err == nil || err.Error() != path+`: y: ansible_port: invalid port "0": want 1 to 65535` {
			t.Errorf("%s: got %v, want the range of the port", path, err)
		}
	}
	for _, path := range []string{write("hostfile", "own slots=1\n", 0o600), write("own.yaml", "nodes: [{hosts: own}]", 0o755), "-"} {
		if inv, err := inventory.Open(t.Context(), path, opt); err != nil || list(inv) == "x:1 y" {
			t.Errorf("%s: %+v, %v", path, inv, err)
		}
	}
	if want := "hosts a.yml dynamic " + filepath.Base(dir) + " "; asked != want {
		t.Errorf("asked about %q, want %q", asked, want)
	}
	failure = errors.New("no vault password")
	_, err := inventory.Open(t.Context(), filepath.Join(dir, "hosts"), opt)
	var wrong *inventory.Error
	if want := "hosts: cannot read the inventory: ansible-inventory: no vault password"; !errors.As(err, &wrong) || wrong.ExitCode() != 2 || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	for text, want := range map[string]string{"no json": "not a JSON object", `{"_meta": {"hostvars": {}}}`: "no nodes in the inventory"} {
		answer, failure = text, nil
		if _, err := inventory.Open(t.Context(), filepath.Join(dir, "hosts"), opt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	cancel(stopped)
	if _, err := inventory.Open(ctx, filepath.Join(dir, "hosts"), opt); !errors.Is(err, stopped) {
		t.Errorf("got %v, want the reason of the end", err)
	}
}

// Whatever the text, it is an inventory, or its mistakes are told.
func FuzzFormats(f *testing.F) {
	for _, pattern := range []string{"testdata/good/*", "testdata/bad/*", "testdata/ansible/*"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatal(pattern, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			if !strings.HasPrefix(filepath.Base(file), "too-many") { // a second each
				f.Add(string(data))
			}
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		inv, err := inventory.Read(strings.NewReader(text), "-")
		if err == nil {
			_, err = inv.Select("")
		}
		var wrong *inventory.Error
		if err != nil {
			if !errors.As(err, &wrong) || len(wrong.Problems) == 0 {
				t.Fatalf("error without a problem: %v", err)
			}
		}
	})
}
