//go:build linux

// Package crowd runs many SSH servers in one process. Each server answers dsbuild as a node
// would, but runs no program. This measures the driver's cost for a thousand nodes on a machine
// that cannot run a thousand Pythons. The servers write the files that dsbuild sends, and compute
// their digests.
package crowd

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/dsbuild/dsbuild/internal/remote/sshtest"
)

// Options configure a crowd.
type Options struct {
	// Dir is an empty folder for all files of the crowd.
	Dir string
	// Count is the number of nodes.
	Count int
	// Wheel is the path of the wheel that dsbuild will deploy. The nodes answer with its
	// contents.
	Wheel string
}

// Crowd is a set of running servers.
type Crowd struct {
	// Inventory is the path of the inventory with all servers.
	Inventory string

	nodes []*node
}

// most is the number of available addresses.
const most = 250 * 250

// Up starts the servers. Each has its own address in 127.1.0.0/16; all use the same port, as real
// nodes do.
func Up(opt Options) (*Crowd, error) {
	if opt.Count < 1 || opt.Count > most {
		return nil, fmt.Errorf("%d nodes: 1 to %d", opt.Count, most)
	}
	inside, err := read(opt.Wheel)
	if err != nil {
		return nil, err
	}
	identity := filepath.Join(opt.Dir, "id_ed25519")
	key, err := newIdentity(identity)
	if err != nil {
		return nil, err
	}
	c := &Crowd{Inventory: filepath.Join(opt.Dir, "inventory.yaml")}
	port := 0
	for i := range opt.Count {
		n := &node{name: fmt.Sprintf("node%d", i+1), wheel: inside}
		dir := filepath.Join(opt.Dir, n.name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			c.Stop()
			return nil, err
		}
		n.server, err = sshtest.Run(dir, sshtest.Options{
			Name: n.name, Address: fmt.Sprintf("127.1.%d.%d", i/250, i%250+1), Port: port, Key: key, Exec: n.exec,
		})
		if err != nil {
			c.Stop()
			return nil, fmt.Errorf("%s: %w", n.name, err)
		}
		c.nodes = append(c.nodes, n)
		port = n.server.Port
	}
	if err := c.write(identity); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
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

// write writes the inventory and known_hosts.
func (c *Crowd) write(identity string) error {
	var known, inv strings.Builder
	fmt.Fprintf(&inv, "defaults: {user: train, port: %d, identity_file: %q}\nknown_hosts: known_hosts\nnodes:\n", c.nodes[0].server.Port, identity)
	for _, n := range c.nodes {
		key, err := os.ReadFile(n.server.KnownHosts)
		if err != nil {
			return err
		}
		known.Write(key)
		fmt.Fprintf(&inv, "  - {hosts: %s, address: %s, python: %q}\n", n.name, n.server.Address, n.python())
	}
	return errors.Join(
		os.WriteFile(filepath.Join(filepath.Dir(c.Inventory), "known_hosts"), []byte(known.String()), 0o644),
		os.WriteFile(c.Inventory, []byte(inv.String()), 0o644),
	)
}

// Deployed returns the number of nodes that have recorded the wheel.
func (c *Crowd) Deployed() int {
	count := 0
	for _, n := range c.nodes {
		if n.runs() {
			count++
		}
	}
	return count
}

// Stop stops the servers, and waits until they have ended.
func (c *Crowd) Stop() {
	for _, n := range c.nodes {
		n.server.Stop()
	}
}
