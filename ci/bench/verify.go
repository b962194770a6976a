//go:build linux

package main

import (
	"context"
	"fmt"
	"strings"
)

// verified is the number of nodes; window is the number of nodes at once, the default of dsbuild
// and of pdsh.
const (
	verified = fleetSize
	window   = 32
)

// ask is the command that the other tools run on a node.
const ask = `ASK=$HOME/../venv/bin/python -c 'import importlib.metadata as m; print(m.version("deepspeed"))'`

// verifyContenders ask the first n nodes which DeepSpeed they have.
func verifyContenders(n int) []contender {
	fill := fillLines(n)
	pdsh := func(name, config, command string) contender {
		return contender{name, fill(`pdsh -S -R ssh -w {nodes} ` + command), []string{"PDSH_SSH_ARGS_APPEND=-F " + config}}
	}
	return []contender{
		{dsbuildName, fill(`dsbuild verify nodes/inventory.yaml --limit {nodes} --verify files`), nil},
		pdsh("pdsh, as shipped", "ssh_config.shipped", `"$ASK"`),
		pdsh("pdsh", "ssh_config", `"$ASK"`),
		pdsh("pdsh true, as shipped", "ssh_config.shipped", `true`),
		pdsh("pdsh true", "ssh_config", `true`),
		{"clush", fill(`clush -S -b -f {window} -w {nodes} -o '-F ssh_config' "$ASK"`), nil},
		{"parallel-ssh", fill(`parallel-ssh -h <(head -{n} hosts) -p {window} -t 0 -x '-F ssh_config' "$ASK"`), nil},
		{"ssh", fill(`head -{n} hosts | xargs -P {window} -IHOST ssh -F ssh_config HOST "$ASK"`), nil},
		{ansibleName, fill(`ansible all -i ansible.ini -l $(head -{n} hosts | paste -sd,) -f {window} -m ansible.builtin.command -a '{{ ansible_python_interpreter }} -c "import importlib.metadata as m; print(m.version(\"deepspeed\"))"'`), ansibleEnv()},
	}
}

// compareVerifications compares tools that ask nodes for their version.
func (races fleetRaces) compareVerifications(ctx context.Context) (string, error) {
	if err := races.deployWheel(ctx, races.real[0], fmt.Sprintf("node[1-%d]", verified)); err != nil {
		return "", err
	}
	rank, err := races.runRace(ctx, race{
		title: fmt.Sprintf("what do %d nodes run?", verified), nodes: verified, rounds: 3, contenders: verifyContenders,
		before: func(contender, int) ([]string, error) { return []string{ask}, nil },
	})
	if err != nil {
		return "", err
	}
	return strings.Join([]string{
		rank.String(),
		"dsbuild reads every file of DeepSpeed on each node and compares it with RECORD and with the other nodes, compares the byte code with the wheel's, and asks for torch, CUDA, GPUs, driver and the rest besides; " +
			"the others ask for the version alone, or do nothing (true).\n",
		races.listTools(),
	}, "\n"), nil
}

// deployWheel deploys a wheel to some nodes before the measurement.
func (races fleetRaces) deployWheel(ctx context.Context, wheel, limit string) error {
	c, err := measureCommand(ctx, races.dir, races.commandEnv(), races.log, fmt.Sprintf("dsbuild deploy nodes/inventory.yaml --limit '%s' --verify files --wheel %s", limit, wheel))
	if err == nil && c.Status != 0 {
		err = fmt.Errorf("dsbuild deploy exited with status %d; output: %s", c.Status, races.log.Name())
	}
	return err
}
