//go:build linux

// Package nodes runs a few real OpenSSH servers on this machine that look like the nodes of a
// cluster: each has its own address in 127.0.1.0/24, host key, home, temporary folder and Python
// environment. They need no root, write only into one folder, and end with the program that started
// them. For root, each can have a network of its own, with a link of a limited speed.
package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/rogpeppe/go-internal/lockedfile"
)

// DefaultTorch is the version of torch in environments, unless the options name another.
const DefaultTorch = "2.15.0"

// Env names the contents of a node's Python environment.
type Env int

// The environments a node can have.
const (
	// WithTorch has torch and DeepSpeed's requirements, as hard links to one cache.
	WithTorch Env = iota
	// FakeTorch has a stub that claims to be torch FakeTorchVersion, and pip. (WithTorch has no pip:
	// Python then compiles the pip of its own wheel anew in each run, which takes longer than all else of a deploy.)
	FakeTorch
	// NoPython has no interpreter at the path in the inventory.
	NoPython
)

// FakeTorchVersion and FakeTorchCUDA are the versions that the stub of FakeTorch claims.
const (
	FakeTorchVersion = "2.6.0"
	FakeTorchCUDA    = "12.4"
)

// String is the environment's name in the file that describes it.
func (e Env) String() string {
	return [...]string{"torch", "fake-torch", "none"}[e]
}

// Options select the nodes to run.
type Options struct {
	// Dir is the folder for everything, made if missing.
	Dir string
	// Count is the number of nodes; 0 means 3.
	Count int
	// Env is the environment of every node. Each holds the environments of single nodes, by
	// index.
	Env  Env
	Each map[int]Env
	// Torch is the version for WithTorch; "" means DefaultTorch.
	Torch string
	// Packages go into WithTorch besides torch and DeepSpeed's requirements.
	Packages []string
	// QuickPip gives FakeTorch the quick pip of tests in place of a real one.
	QuickPip bool
	// Python is the major.minor version of the interpreters; "" means 3.11.
	Python string
	// Networks gives every node and the controller a network of their own, whose links Fleet.Shape can
	// limit. It needs root. Only commands behind Fleet.EnterController then reach the nodes.
	Networks bool
	// Log, if set, gets a line before each step that takes long.
	Log func(line string)
}

// Node is one running server.
type Node struct {
	Name    string // node1, node2, …
	Address string
	Port    int
	Dir     string // everything of this node
	Home    string // HOME after a login
	Python  string // as in the inventory
	Env     Env

	configured []string // lines of its sshd_config
	server     *server  // nil: the node is switched off
	network    *network // nil: it is in this machine's own
}

// Fleet is a set of running nodes.
type Fleet struct {
	// Dir is Options.Dir, absolute.
	Dir string
	// User is the account that may log in: the user that started the fleet.
	User string
	// Inventory, KnownHosts and IdentityFile are the files for clients.
	Inventory    string
	KnownHosts   string
	IdentityFile string
	Nodes        []*Node

	sshd    sshd
	network *network // nil: all nodes are in this machine's own
	unlock  func()
}

// ErrNoSSHD means that this machine has no OpenSSH server and none could be installed.
var ErrNoSSHD = errors.New("no OpenSSH server here")

func (o *Options) withDefaults() error {
	if o.Dir == "" {
		return errors.New("no folder for the nodes given")
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return err
	}
	o.Dir = dir
	if o.Count == 0 {
		o.Count = 3
	}
	if o.Count < 1 || o.Count > 250 {
		return fmt.Errorf("%d nodes: 1 to 250 fit into 127.0.1.0/24", o.Count)
	}
	if o.Torch == "" {
		o.Torch = DefaultTorch
	}
	if o.Python == "" {
		o.Python = "3.11"
	}
	if o.Log == nil {
		o.Log = func(string) {}
	}
	return nil
}

// Up starts the nodes and makes their environments, unless these exist from an earlier Up in the
// same folder. It waits for a fleet that runs there.
func Up(ctx context.Context, opt Options) (*Fleet, error) {
	if err := opt.withDefaults(); err != nil {
		return nil, err
	}
	sshd, err := findSSHD(ctx, opt.Log)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(opt.Dir, 0o755); err != nil {
		return nil, err
	}
	unlock, err := lockedfile.MutexAt(opt.Dir + ".lock").Lock() // beside the folder, because a test may unmount it
	if err != nil {
		return nil, err
	}
	f, err := newFleet(opt)
	if err != nil {
		unlock()
		return nil, err
	}
	f.sshd, f.unlock = sshd, sync.OnceFunc(unlock)
	if err := f.start(ctx, opt); err != nil {
		return nil, errors.Join(err, f.Down())
	}
	return f, nil
}

// newFleet returns a fleet with all its names and paths; it writes nothing.
func newFleet(opt Options) (*Fleet, error) {
	u, err := user.Current()
	if err != nil {
		return nil, err
	}
	port, address := networkPort, nodeAddress
	if !opt.Networks {
		address = loopbackAddress
		if port, err = freePort(opt.Dir, opt.Count); err != nil {
			return nil, err
		}
	}
	f := &Fleet{
		Dir: opt.Dir, User: u.Username,
		Inventory:    filepath.Join(opt.Dir, "inventory.yaml"),
		KnownHosts:   filepath.Join(opt.Dir, "known_hosts"),
		IdentityFile: filepath.Join(opt.Dir, "id_ed25519"),
	}
	for i := range opt.Count {
		n := &Node{Name: fmt.Sprintf("node%d", i+1), Address: address(i), Port: port, Env: opt.Env}
		if e, ok := opt.Each[i]; ok {
			n.Env = e
		}
		n.Dir = filepath.Join(opt.Dir, n.Name)
		n.Home = filepath.Join(n.Dir, "home")
		n.Python = filepath.Join(n.Dir, "venv", "bin", "python")
		f.Nodes = append(f.Nodes, n)
	}
	return f, nil
}

// start makes the missing parts and starts all nodes. It first ends processes that a killed
// program has left on its nodes.
func (f *Fleet) start(ctx context.Context, opt Options) error {
	if err := f.layOut(); err != nil {
		return err
	}
	if err := f.makeEnvironments(ctx, opt); err != nil {
		return err
	}
	if opt.Networks {
		var err error
		if f.network, err = newNetwork(); err != nil {
			return err
		}
		for _, n := range f.Nodes {
			n.network = f.network
		}
	}
	if err := stopServers(f.Nodes...); err != nil {
		return err
	}
	for i, n := range f.Nodes {
		if err := f.startServer(i); err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	return f.writeFiles()
}

// layOut makes the missing folders and keys.
func (f *Fleet) layOut() error {
	if err := ensureKey(f.IdentityFile); err != nil {
		return err
	}
	pub, err := os.ReadFile(f.IdentityFile + ".pub")
	if err != nil {
		return err
	}
	for _, n := range f.Nodes {
		for _, d := range []string{n.Home, n.tmp()} {
			if err := os.MkdirAll(d, 0o700); err != nil {
				return err
			}
		}
		// sshd starts every command in the account's home. A shell that reads .bashrc, as bash
		// does under sshd, changes to the node's own home.
		if err := os.WriteFile(filepath.Join(n.Home, ".bashrc"), []byte("cd \"$HOME\"\n"), 0o644); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(n.Dir, "authorized_keys"), pub, 0o600); err != nil {
			return err
		}
		if err := ensureKey(n.hostKeyFile()); err != nil {
			return err
		}
	}
	return nil
}

func loopbackAddress(i int) string { return fmt.Sprintf("127.0.1.%d", i+1) }

// freePort finds a port that is free on the addresses of all nodes, below the range of ports for
// outgoing connections: for one directory the same, if it is free.
func freePort(dir string, count int) (int, error) {
	next := int(crc32.ChecksumIEEE([]byte(dir)) % 10000)
next:
	for range 200 {
		port := 20000 + next
		next = rand.N(10000)
		for i := range count {
			l, err := net.Listen("tcp", net.JoinHostPort(loopbackAddress(i), strconv.Itoa(port)))
			if err != nil {
				continue next
			}
			l.Close()
		}
		return port, nil
	}
	return 0, errors.New("no port is free on all of the nodes' addresses")
}

// writeFiles writes the inventory and known_hosts.
func (f *Fleet) writeFiles() error {
	var known, inv strings.Builder
	fmt.Fprintf(&inv, "# Local test nodes: real OpenSSH servers on this machine.\n")
	fmt.Fprintf(&inv, "defaults:\n  user: %s\n  port: %d\n  identity_file: %s\n", quoteYAML(f.User), f.Nodes[0].Port, quoteYAML(f.IdentityFile))
	fmt.Fprintf(&inv, "known_hosts: known_hosts\nnodes:\n")
	for _, n := range f.Nodes {
		key, err := n.HostKey()
		if err != nil {
			return err
		}
		fmt.Fprintf(&known, "[%s]:%d %s\n", n.Address, n.Port, authorizedKey(key))
		fmt.Fprintf(&inv, "  - {hosts: %s, address: %s, python: %s}\n", n.Name, n.Address, quoteYAML(n.Python))
	}
	if err := os.WriteFile(f.KnownHosts, []byte(known.String()), 0o644); err != nil {
		return err
	}
	return os.WriteFile(f.Inventory, []byte(inv.String()), 0o644)
}

// quoteYAML quotes a string for YAML, which accepts JSON's quotes.
func quoteYAML(s string) string {
	b, _ := json.Marshal(s) //nolint:errcheck // a string always has a JSON form
	return string(b)
}
