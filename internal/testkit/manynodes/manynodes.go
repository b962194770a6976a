//go:build linux

// Package manynodes runs many nodes in one process: SSH servers whose commands are real programs
// of this machine. Each node has its own address, home and Python environment. The environment
// is only a few small files (python.StandIn), so dsbuild's real programs can run on a thousand
// nodes.
package manynodes

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// Fleet is a set of running nodes.
type Fleet struct {
	// Inventory is the path of the inventory with all nodes.
	Inventory string

	nodes []*node
}

// node is a server and the environment that dsbuild deploys to.
type node struct {
	name, python string
	server       *sshtest.Server
}

// most is the number of available addresses.
const most = 250 * 250

// Versions of the stand-in torch: the default versions of a wheel.
const (
	pythonVersion = "3.11"
	torchVersion  = "2.15.0"
	cudaVersion   = "13.2"
)

// Up starts count nodes, with all their files in the empty folder dir. Each has its own address in
// 127.1.0.0/16; all use the same port, as real nodes do.
func Up(ctx context.Context, dir string, count int) (*Fleet, error) {
	if count < 1 || count > most {
		return nil, fmt.Errorf("%d nodes: 1 to %d", count, most)
	}
	environment, err := standIn(ctx, filepath.Join(dir, "pip"))
	if err != nil {
		return nil, err
	}
	identity := filepath.Join(dir, "id_ed25519")
	key, err := newIdentity(identity)
	if err != nil {
		return nil, err
	}
	f := &Fleet{Inventory: filepath.Join(dir, "inventory.yaml")}
	for i := range count {
		if err := f.start(i, dir, environment, key); err != nil {
			f.Down()
			return nil, fmt.Errorf("node%d: %w", i+1, err)
		}
	}
	if err := f.write(identity); err != nil {
		f.Down()
		return nil, err
	}
	return f, nil
}

// standIn describes the environment of every node, and unpacks the quick pip that all of them share.
func standIn(ctx context.Context, pip string) (python.StandIn, error) {
	interpreter, err := python.Find(ctx, pythonVersion)
	if err != nil {
		return python.StandIn{}, err
	}
	lines, err := dockerfiles.RuntimeRequirements()
	if err != nil {
		return python.StandIn{}, err
	}
	s := python.StandIn{Interpreter: interpreter, Version: pythonVersion, Torch: torchVersion, CUDA: cudaVersion, Pip: pip}
	known := map[string]bool{}
	for _, line := range lines { // of several lines for one package, the first is for the newest Python
		requirement, _, _ := strings.Cut(line, ";")
		if name, _, _ := strings.Cut(requirement, "=="); !known[name] {
			known[name] = true
			s.Packages = append(s.Packages, requirement)
		}
	}
	return s, python.UnpackQuickPip(ctx, interpreter, pip)
}

// newIdentity creates the key that all servers accept.
func newIdentity(file string) (ssh.PublicKey, error) {
	pub, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		return nil, err
	}
	return ssh.NewPublicKey(pub)
}

// start makes node i and starts its server, on the port of the first.
func (f *Fleet) start(i int, parent string, environment python.StandIn, key ssh.PublicKey) error {
	n := &node{name: fmt.Sprintf("node%d", i+1)}
	dir := filepath.Join(parent, n.name)
	venv := filepath.Join(dir, "venv")
	if err := environment.Make(venv); err != nil {
		return err
	}
	n.python = filepath.Join(venv, "bin", "python")
	opt := sshtest.Options{Name: n.name, Address: fmt.Sprintf("127.1.%d.%d", i/250, i%250+1), Key: key}
	if i > 0 {
		opt.Port = f.nodes[0].server.Port
	}
	var err error
	if n.server, err = sshtest.Run(dir, opt); err != nil {
		return err
	}
	f.nodes = append(f.nodes, n)
	return nil
}

// write writes the inventory and known_hosts.
func (f *Fleet) write(identity string) error {
	var known, inv strings.Builder
	fmt.Fprintf(&inv, "defaults: {user: train, port: %d, identity_file: %q}\nknown_hosts: known_hosts\nnodes:\n", f.nodes[0].server.Port, identity)
	for _, n := range f.nodes {
		key, err := os.ReadFile(n.server.KnownHosts)
		if err != nil {
			return err
		}
		known.Write(key)
		fmt.Fprintf(&inv, "  - {hosts: %s, address: %s, python: %q}\n", n.name, n.server.Address, n.python)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(filepath.Dir(f.Inventory), "known_hosts"), []byte(known.String()), 0o644),
		os.WriteFile(f.Inventory, []byte(inv.String()), 0o644),
	)
}

// Down stops the servers, and waits until they have ended.
func (f *Fleet) Down() {
	for _, n := range f.nodes {
		n.server.Stop()
	}
}
