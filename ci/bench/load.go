//go:build linux

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// loaded is the number of nodes that load the ops of their wheel.
const loaded = 4

// loadOps is the program that the other tools run after the installation: it loads the ops
// as a training job does. Without a GPU DeepSpeed needs the name of its accelerator.
const loadOps = `LOAD=DS_ACCELERATOR=cuda $HOME/../venv/bin/python -c 'import torch, deepspeed; from deepspeed.ops.op_builder.all_ops import ALL_OPS; [ALL_OPS[op].load() for op in ("cpu_adam", "utils", "fused_adam")]; print(deepspeed.__version__)'`

// loadContenders put a wheel on the first n nodes, install it and load its ops.
func loadContenders(n int) []contender {
	fill := fillLines(n)
	return []contender{
		{dsbuildName, fill(`dsbuild deploy nodes/inventory.yaml --limit {nodes} --wheel "$WHEEL" --verify load --forks {n} --report report.json`), nil},
		{pdshName, fill(`pdcp -R ssh -f {n} -w {nodes} "$WHEEL" . && pdsh -S -R ssh -f {n} -w {nodes} "$INSTALL && $LOAD"`), []string{"PDSH_SSH_ARGS_APPEND=-F ssh_config"}},
		{scpName, fill(`head -{n} hosts | xargs -P {n} -IHOST sh -c 'scp -q -F ssh_config "$WHEEL" HOST: && ssh -F ssh_config HOST "$INSTALL && $LOAD"'`), nil},
		{"loading alone", fill(`head -{n} hosts | xargs -P {n} -IHOST setsid -w env HOME=$PWD/nodes/HOST/home bash -c "$LOAD"`), nil},
	}
}

// compareLoads compares deploys that also load the ops.
func (races fleetRaces) compareLoads(ctx context.Context) (string, error) {
	n := 0
	var wheel string
	rank, err := races.runRace(ctx, race{
		title: fmt.Sprintf("a wheel to %d nodes, its ops loaded", loaded), nodes: loaded, rounds: 3, contenders: loadContenders,
		before: func(contender, int) ([]string, error) {
			n++
			wheel = races.real[n%len(races.real)]
			return []string{"WHEEL=" + wheel, fmt.Sprintf(install, filepath.Base(wheel)), loadOps}, races.emptyHomes()
		},
	})
	if err != nil {
		return "", err
	}
	return strings.Join([]string{
		rank.String(), rank.floor("loading alone"), races.listTools(),
		rank.listCommands(fmt.Sprintf("export "+install, "deepspeed-….whl"), "export "+loadOps),
	}, "\n"), nil
}
