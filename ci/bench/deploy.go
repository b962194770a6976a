//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
)

// deployed is the number of nodes that get a wheel.
const deployed = 16

// install is the command that the other tools run on a node. A node's environment is next to its
// home.
const install = `INSTALL=$HOME/../venv/bin/python -m pip install -q --no-deps --no-index --force-reinstall %[1]s && $HOME/../venv/bin/python -c 'import importlib.metadata as m; print(m.version("deepspeed"))'`

// deployPlaybook is the same for Ansible.
const deployPlaybook = `- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.copy:
        src: "{{ wheel }}"
        dest: "~/"
        mode: "0600"
    - ansible.builtin.pip:
        name: "./{{ wheel | basename }}"
        chdir: "~"
        state: forcereinstall
        extra_args: --no-deps --no-index
    - ansible.builtin.command:
        argv: ["{{ ansible_python_interpreter }}", -c, "import importlib.metadata as m; print(m.version('deepspeed'))"]
      changed_when: false
`

// The names of contenders that the results mention.
const (
	dsbuildName = "dsbuild"
	pdshName    = "pdcp + pdsh"
	pdcpName    = "pdcp"
	scpName     = "scp + ssh"
	ansibleName = "ansible"
	floorName   = "pip alone"
)

// fillLines returns a function that fills the first n nodes, and the number of parallel nodes, into
// a command line.
func fillLines(n int) func(line string) string {
	return strings.NewReplacer("{nodes}", fmt.Sprintf("'node[1-%d]'", n), "{n}", fmt.Sprint(n), "{window}", fmt.Sprint(min(n, window))).Replace
}

// deployContenders put a wheel on the first n nodes, install it and ask for the version.
func deployContenders(n int) []contender {
	fill := fillLines(n)
	pdsh := func(name, config string) contender {
		return contender{
			name, fill(`pdcp -R ssh -f {n} -w {nodes} "$WHEEL" . && pdsh -S -R ssh -f {n} -w {nodes} "$INSTALL"`),
			[]string{"PDSH_SSH_ARGS_APPEND=-F " + config},
		}
	}
	dsbuild := fill(`dsbuild deploy nodes/inventory.yaml --limit {nodes} --wheel "$WHEEL" --verify files --forks {n}`)
	return []contender{
		{dsbuildName, dsbuild, nil},
		pdsh(pdshName, "ssh_config"),
		pdsh(pdshName+", as shipped", "ssh_config.shipped"),
		{"clush", fill(`clush -S -q -f {n} -w {nodes} -o '-F ssh_config' --copy "$WHEEL" --dest . && clush -S -b -f {n} -w {nodes} -o '-F ssh_config' "$INSTALL"`), nil},
		{"parallel-ssh", fill(`parallel-scp -h <(head -{n} hosts) -p {n} -t 0 -x '-F ssh_config' "$WHEEL" ./ && parallel-ssh -h <(head -{n} hosts) -p {n} -t 0 -x '-F ssh_config' "$INSTALL"`), nil},
		{scpName, fill(`head -{n} hosts | xargs -P {n} -IHOST sh -c 'scp -q -F ssh_config "$WHEEL" HOST: && ssh -F ssh_config HOST "$INSTALL"'`), nil},
		{ansibleName, fill(`ansible-playbook -i ansible.ini -l $(head -{n} hosts | paste -sd,) -f {n} -e wheel="$WHEEL" deploy.yml`), ansibleEnv()},
		{floorName, fill(`head -{n} hosts | xargs -P {n} -IHOST setsid -w sh -c 'nodes/HOST/venv/bin/python -m pip install -q --no-deps --no-index --force-reinstall "$WHEEL"'`), nil},
	}
}

// ansibleEnv keeps Ansible's connections and files to one run. Otherwise the next round would
// find them.
func ansibleEnv() []string {
	return []string{"ANSIBLE_HOME=ansible/home", "ANSIBLE_SSH_ARGS=-C -o ControlMaster=auto -o ControlPersist=60s -F ssh_config"}
}

// compareDeploys compares the tools that deploy a wheel to nodes. The nodes get a different wheel in
// each round.
func (races fleetRaces) compareDeploys(ctx context.Context) (string, error) {
	turn := 0
	var wheel string
	rank, err := races.runRace(ctx, race{
		title: fmt.Sprintf("a wheel to %d nodes", deployed), nodes: deployed, rounds: 3, contenders: deployContenders,
		before: func(c contender, nodes int) ([]string, error) {
			turn++
			wheel = races.real[turn%len(races.real)]
			if err := races.mustRunAnother(ctx, nodes, wheel, races.real[(turn+1)%len(races.real)]); err != nil {
				return nil, err
			}
			return []string{"WHEEL=" + wheel, fmt.Sprintf(install, filepath.Base(wheel))}, races.emptyHomes()
		},
		after: func(_ contender, nodes int) error { return races.mustRun(nodes, wheel) },
	})
	if err != nil {
		return "", err
	}
	return rank.String() + "\n" + races.listTools(), nil
}

// emptyHomes removes the files that other tools left there: Ansible does not send a file that
// exists.
func (races fleetRaces) emptyHomes() error {
	var err error
	for _, node := range races.fleet.Nodes {
		for _, pattern := range []string{"*.whl", "*.bin", "*.part"} {
			files, _ := filepath.Glob(filepath.Join(node.Home, pattern)) // a bad pattern finds none
			for _, file := range files {
				err = errors.Join(err, os.RemoveAll(file))
			}
		}
	}
	return err
}

// mustRun checks that wheel is installed on the first n nodes.
func (races fleetRaces) mustRun(n int, wheel string) error {
	for _, node := range races.fleet.Nodes[:n] {
		if found, ok := runs(node, wheel); !ok {
			return fmt.Errorf("%s has %v, but %s was expected", node.Name, found, wheel)
		}
	}
	return nil
}

// mustRunAnother deploys another wheel to the nodes among the first n on which wheel is already
// installed, because dsbuild would do nothing there.
func (races fleetRaces) mustRunAnother(ctx context.Context, n int, wheel, another string) error {
	var have []string
	for _, node := range races.fleet.Nodes[:n] {
		if _, ok := runs(node, wheel); ok {
			have = append(have, node.Name)
		}
	}
	if len(have) == 0 {
		return nil
	}
	return races.deployWheel(ctx, another, strings.Join(have, ","))
}

// runs reports whether wheel's version is installed on a node, and returns the installed versions.
func runs(node *nodes.Node, wheel string) (found []string, ok bool) {
	version := strings.Split(filepath.Base(wheel), "-")[1]
	found, _ = filepath.Glob(filepath.Join(node.Dir, "venv", "lib", "python3*", "site-packages", "deepspeed-*.dist-info")) // a bad pattern finds none
	return found, len(found) == 1 && filepath.Base(found[0]) == "deepspeed-"+version+".dist-info"
}
