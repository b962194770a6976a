//go:build linux

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/deploy/wheels"

	"github.com/dsbuild/dsbuild/internal/fanout"
	"github.com/dsbuild/dsbuild/internal/filetime"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// bigFile is the copied file; bigSize is its size.
const (
	bigFile = "big.bin"
	bigSize = 200 << 20
)

// noiseReader returns a reader of bytes that no tool can compress, always the same.
func noiseReader(seed byte, size int64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{seed}), size)
}

// makeBigFile makes the copied file.
func (races fleetRaces) makeBigFile() error {
	f, err := os.Create(filepath.Join(races.dir, bigFile))
	if err != nil {
		return err
	}
	_, err = io.Copy(f, noiseReader(0, bigSize))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	time.Sleep(filetime.Slack) // dsbuild remembers digests only of files that are older
	return nil
}

// copyContenders bring a file to the homes of the first n nodes.
func copyContenders(n int) []contender {
	fill := fillLines(n)
	scp := func(name, config string) contender {
		return contender{name, fill(`head -{n} hosts | xargs -P {n} -IHOST scp -q -F ` + config + ` ` + bigFile + ` HOST:`), nil}
	}
	return []contender{
		{dsbuildName, fill(`bench put nodes/inventory.yaml {n} ` + bigFile + ` nodes/HOST/home`), nil},
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
	if err := races.makeBigFile(); err != nil {
		return "", err
	}
	text := ""
	for _, n := range []int{1, 4} {
		rank, err := races.runRace(ctx, race{
			title: fmt.Sprintf("200 MiB to %s", ui.Count(n, "node")), nodes: n, rounds: 3, contenders: copyContenders,
			before: func(contender, int) ([]string, error) { return nil, races.emptyHomes() },
			after:  func(_ contender, n int) error { return races.mustHaveBigFile(n) },
		})
		if err != nil {
			return "", err
		}
		text += rank.String() + "\n"
		ours := rank.ratio(dsbuildName, scpName)
		text += fmt.Sprintf("dsbuild takes %s of scp's time.\n\n%s\n", aroundMedian(ours, "%.2f"), rank.listCommands())
	}
	return text + "\n" + races.listTools(), races.emptyHomes()
}

// mustHaveBigFile makes sure that the file has arrived whole on n nodes.
func (races fleetRaces) mustHaveBigFile(n int) error {
	want := sha256.New()
	if _, err := io.Copy(want, noiseReader(0, bigSize)); err != nil {
		return err
	}
	for _, node := range races.fleet.Nodes[:n] {
		got, _, err := wheel.HashFile(filepath.Join(node.Home, bigFile))
		if err != nil {
			return err
		}
		if got != hex.EncodeToString(want.Sum(nil)) {
			return fmt.Errorf("%s has another file", node.Name)
		}
	}
	return nil
}

// putWord makes this program put a file as dsbuild deploy does: the whole file, with its digest
// compared at the far end.
const putWord = "put"

// runPut is the main program of the process that puts a file. Its arguments are INVENTORY N FILE
// DIR; HOST in DIR stands for the node's name.
func runPut(args []string) error {
	if len(args) != 4 {
		return errors.New("INVENTORY N FILE DIR")
	}
	inv, err := inventory.Load(args[0])
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(args[1])
	if err != nil || n < 1 || n > len(inv.Hosts) {
		return fmt.Errorf("%s nodes of %d", args[1], len(inv.Hosts))
	}
	sha256, size, err := wheels.Cache{Dir: "verified"}.Sum(args[2])
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(args[3])
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(1) // as dsbuild does on two cores while nodes are working
	debug.SetGCPercent(400)
	dialer := remote.NewSSH(remote.Options{})
	results := fanout.Run(context.Background(), inv.Hosts[:n], fanout.Options{Forks: n}, func(ctx context.Context, h inventory.Host) (struct{}, error) {
		c, err := dialer.Dial(ctx, remote.Target{Name: h.Name, Address: h.Address, Port: h.Port, User: h.User, IdentityFiles: []string{h.IdentityFile}, KnownHosts: []string{inv.KnownHosts}})
		if err != nil {
			return struct{}{}, err
		}
		defer c.Close()
		return struct{}{}, c.Put(ctx, remote.Upload{
			Open: func() (io.ReadSeekCloser, error) { return os.Open(args[2]) }, Size: size, SHA256: sha256,
			Path: filepath.Join(strings.ReplaceAll(dir, "HOST", h.Name), filepath.Base(args[2])), Mode: 0o600, Resume: true,
			Write: func(ctx context.Context, path string, at int64, r io.Reader) (string, error) {
				return node.Append(ctx, c, h.Python, path, at, r)
			},
		})
	})
	for i, r := range results {
		if r.Err != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", inv.Hosts[i].Name, r.Err))
		}
	}
	return err
}
