//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/dsbuild/dsbuild/internal/filetime"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// bigFile is the copied file; bigSize is its size.
const (
	bigFile = "big.bin"
	bigSize = 200 << 20
)

// noiseReader returns a reader of incompressible, reproducible bytes.
func noiseReader(seed byte, size int64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{seed}), size)
}

// makeFile makes a file to copy.
func (races fleetRaces) makeFile(name string, size int64) error {
	f, err := os.Create(filepath.Join(races.dir, name))
	if err != nil {
		return err
	}
	_, err = io.Copy(f, noiseReader(0, size))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	time.Sleep(filetime.Slack) // dsbuild remembers digests only of files that are older
	return nil
}

// copyContenders copy a file to the homes of the first n nodes.
func copyContenders(n int) []contender {
	fill := fillLines(n)
	scp := func(name, config string) contender {
		return contender{name, fill(`head -{n} hosts | xargs -P {n} -IHOST scp -q -F ` + config + ` ` + bigFile + ` HOST:`), nil}
	}
	return []contender{
		{dsbuildName, fill(`bench put nodes/inventory.yaml {n} ` + bigFile + ` nodes/HOST/home off`), nil},
		scp(scpName, "ssh_config"),
		scp("scp, aes128-gcm", "ssh_config.gcm"),
		{pdcpName, fill(`pdcp -R ssh -f {n} -w {nodes} ` + bigFile + ` .`), []string{"PDSH_SSH_ARGS_APPEND=-F ssh_config"}},
		{"clush --copy", fill(`clush -S -q -f {n} -w {nodes} -o '-F ssh_config' --copy ` + bigFile + ` --dest .`), nil},
		{"parallel-scp", fill(`parallel-scp -h <(head -{n} hosts) -p {n} -t 0 -x '-F ssh_config' ` + bigFile + ` ./`), nil},
		{"ansible copy", fill(`ansible all -i ansible.ini -l $(head -{n} hosts | paste -sd,) -f {n} -m ansible.builtin.copy -a 'src=` + bigFile + ` dest=~/'`), ansibleEnv()},
	}
}

// compareCopies compares the tools that copy a big file.
func (races fleetRaces) compareCopies(ctx context.Context) (string, error) {
	if err := races.makeFile(bigFile, bigSize); err != nil {
		return "", err
	}
	text := ""
	for _, n := range []int{1, 4} {
		rank, err := races.runRace(ctx, race{
			title: fmt.Sprintf("200 MiB to %s", ui.Count(n, "node")), nodes: n, rounds: 3, contenders: copyContenders,
			before: func(contender, int) ([]string, error) { return nil, races.emptyHomes() },
			after:  func(_ contender, n int) error { return races.mustHaveFile(bigFile, races.fleet.Nodes[:n]) },
		})
		if err != nil {
			return "", err
		}
		text += rank.String() + "\n"
		ours := rank.ratio(dsbuildName, scpName)
		text += fmt.Sprintf("dsbuild takes %s of scp's time.\n\n", aroundMedian(ours, "%.2f"))
	}
	return text + races.listTools(), races.emptyHomes()
}

// mustHaveFile checks that nodes have the complete copied file.
func (races fleetRaces) mustHaveFile(name string, nodes []*nodes.Node) error {
	want, _, err := wheel.HashFile(filepath.Join(races.dir, name))
	if err != nil {
		return err
	}
	for _, node := range nodes {
		got, _, err := wheel.HashFile(filepath.Join(node.Home, name))
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s has another file", node.Name)
		}
	}
	return nil
}
