//go:build linux

// Package nodes runs a few real OpenSSH servers on this machine that look like the nodes of a
// cluster: each has its own address in 127.0.1.0/24, host key, home, temporary folder and Python
// environment. They need no root, and write only into one folder.
package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// DefaultTorch is the torch that goes into environments when none is named.
const DefaultTorch = "2.15.0"

// Env names the contents of a node's Python environment.
type Env int

// The environments a node can have.
const (
	// WithTorch has torch and what DeepSpeed needs, hard links to one cache.
	WithTorch Env = iota
	// Bare is an environment without any package, not even pip.
	Bare
	// FakeTorch is Bare with a stub that says it is torch FakeTorchVersion.
	FakeTorch
	// NoPython has no interpreter at the place that the inventory names.
	NoPython
)

// FakeTorchVersion and FakeTorchCUDA are the versions that the stub of FakeTorch claims.
const (
	FakeTorchVersion = "2.6.0"
	FakeTorchCUDA    = "12.4"
)

// String is the environment's name on the command line.
func (e Env) String() string {
	return [...]string{"torch", "bare", "fake-torch", "none"}[e]
}

// ParseEnv is the reverse of Env.String.
func ParseEnv(s string) (Env, error) {
	for e := WithTorch; e <= NoPython; e++ {
		if e.String() == s {
			return e, nil
		}
	}
	return 0, fmt.Errorf("%q is not an environment: torch, bare, fake-torch or none", s)
}

// Options say which nodes to run.
type Options struct {
	// Dir is the folder for everything, made if missing.
	Dir string
	// Count is how many nodes; 0 means 3.
	Count int
	// Env is the environment of every node, Each that of single ones, by index.
	Env  Env
	Each map[int]Env
	// Torch is the version for WithTorch; "" means DefaultTorch.
	Torch string
	// Packages go into WithTorch besides torch and what DeepSpeed needs.
	Packages []string
	// Python is the major.minor version of the interpreters; "" means 3.11.
	Python string
	// CacheDir holds uv and its cache; "" means dsbuild's folder in the user's cache.
	CacheDir string
	// Log, if set, gets a line before each step that takes long.
	Log func(line string)
}

// Node is one running server.
type Node struct {
	Name    string // node1, node2, …
	Address string
	Port    int
	Dir     string // everything of this node
	Home    string // HOME of whoever logs in
	Python  string // as in the inventory
	Env     Env
	HostKey string // fingerprint

	configured []string // lines of its sshd_config
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

	log func(string)
}

// ErrNoSSHD says that this machine has no OpenSSH server and none could be installed.
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
	if o.CacheDir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return err
		}
		o.CacheDir = filepath.Join(cache, "dsbuild")
	}
	if o.Log == nil {
		o.Log = func(string) {}
	}
	return nil
}

// Up makes sure that the nodes run and have their environments. Nodes that run already are kept,
// so a second Up takes a moment only. If a node cannot be
// started, all are stopped.
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
	unlock, err := lockFleet(filepath.Join(opt.Dir, ".lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	f, err := layOutFleet(opt)
	if err != nil {
		return nil, err
	}
	if err := f.makeEnvironments(ctx, opt); err != nil {
		return nil, err
	}
	for _, n := range f.Nodes {
		if err := n.startServer(sshd, f); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", n.Name, err), f.stopLocked())
		}
	}
	if err := f.writeFiles(); err != nil {
		return nil, errors.Join(err, f.stopLocked())
	}
	return f, nil
}

// state is the part of a fleet that is kept between two Ups.
type state struct {
	Port  int   `json:"port"`
	Count int   `json:"count"`
	Envs  []Env `json:"envs"`
}

func stateFile(dir string) string { return filepath.Join(dir, "fleet.json") }

func readState(dir string) (state, error) {
	var s state
	b, err := os.ReadFile(stateFile(dir))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("%s: %w", stateFile(dir), err)
	}
	if s.Port < 1 || s.Port > 65535 || s.Count < 1 || s.Count > 250 || len(s.Envs) != s.Count {
		return s, fmt.Errorf("%s: not written by this program", stateFile(dir))
	}
	return s, nil
}

// layOutFleet lays out the fleet: keys, folders, one port for all.
func layOutFleet(opt Options) (*Fleet, error) {
	old, err := readState(opt.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	s := state{Port: old.Port, Count: opt.Count, Envs: make([]Env, opt.Count)}
	for i := range s.Envs {
		s.Envs[i] = opt.Env
		if e, ok := opt.Each[i]; ok {
			s.Envs[i] = e
		}
	}
	if old.Count > opt.Count {
		// The surplus would run on with nobody to stop it.
		all, err := loadFleet(opt.Dir, old, opt.Log)
		if err != nil {
			return nil, err
		}
		for _, n := range all.Nodes[opt.Count:] {
			if err := n.stopServer(); err != nil {
				return nil, err
			}
		}
	}
	if s.Port == 0 {
		if s.Port, err = freePort(opt.Count); err != nil {
			return nil, err
		}
	}
	f, err := loadFleet(opt.Dir, s, opt.Log)
	if err != nil {
		return nil, err
	}
	if err := f.layOut(); err != nil {
		return nil, err
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, err
	}
	return f, os.WriteFile(stateFile(opt.Dir), append(b, '\n'), 0o644)
}

// loadFleet names everything of a fleet; it touches nothing.
func loadFleet(dir string, s state, log func(string)) (*Fleet, error) {
	u, err := user.Current()
	if err != nil {
		return nil, err
	}
	f := &Fleet{
		Dir: dir, User: u.Username, log: log,
		Inventory:    filepath.Join(dir, "inventory.yaml"),
		KnownHosts:   filepath.Join(dir, "known_hosts"),
		IdentityFile: filepath.Join(dir, "id_ed25519"),
	}
	for i := range s.Count {
		n := &Node{Name: fmt.Sprintf("node%d", i+1), Address: fmt.Sprintf("127.0.1.%d", i+1), Port: s.Port, Env: s.Envs[i]}
		n.Dir = filepath.Join(dir, n.Name)
		n.Home = filepath.Join(n.Dir, "home")
		n.Python = filepath.Join(n.Dir, "venv", "bin", "python")
		f.Nodes = append(f.Nodes, n)
	}
	return f, nil
}

// Open returns the fleet that an earlier Up left in dir, whether its nodes run or not.
func Open(dir string) (*Fleet, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s, err := readState(dir)
	if err != nil {
		return nil, err
	}
	f, err := loadFleet(dir, s, func(string) {})
	if err != nil {
		return nil, err
	}
	for _, n := range f.Nodes {
		if key, err := readHostKey(n.hostKeyFile()); err == nil {
			n.HostKey = keyFingerprint(key)
		}
	}
	return f, nil
}

// layOut makes the folders and keys that are missing.
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
		// sshd starts every command in the account's home; a shell that reads
		// .bashrc, as bash does under sshd, moves on to the node's own.
		if err := os.WriteFile(filepath.Join(n.Home, ".bashrc"), []byte("cd \"$HOME\"\n"), 0o644); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(n.Dir, "authorized_keys"), pub, 0o600); err != nil {
			return err
		}
		if err := ensureKey(n.hostKeyFile()); err != nil {
			return err
		}
		key, err := readHostKey(n.hostKeyFile())
		if err != nil {
			return err
		}
		n.HostKey = keyFingerprint(key)
	}
	return nil
}

// freePort finds a port that is free on the addresses of all nodes, below the
// range from which outgoing connections take theirs.
func freePort(count int) (int, error) {
next:
	for range 200 {
		port := 20000 + rand.N(10000)
		for i := range count {
			l, err := net.Listen("tcp", net.JoinHostPort(fmt.Sprintf("127.0.1.%d", i+1), strconv.Itoa(port)))
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
		key, err := readHostKey(n.hostKeyFile())
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

// quoteYAML quotes a string for YAML, which takes JSON's.
func quoteYAML(s string) string {
	b, _ := json.Marshal(s) //nolint:errcheck // a string always has a JSON form
	return string(b)
}

// lockFleet takes an exclusive lock for as long as the process lives or until unlock.
func lockFleet(file string) (unlock func(), err error) {
	l, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(l.Fd()), syscall.LOCK_EX); err != nil {
		l.Close()
		return nil, fmt.Errorf("locking %s: %w", file, err)
	}
	return func() { l.Close() }, nil
}
