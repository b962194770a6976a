// Package remote connects to a node over SSH and SFTP, with strict host keys. A connection runs
// commands on the node and puts files there.
package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"golang.org/x/time/rate"
)

// Target holds the settings needed to reach one node, as plain resolved values.
type Target struct {
	// Name is the node's name in messages.
	Name string
	// Node is the node's host name, for dialers that identify nodes by it.
	Node string
	// Address is the host name or IP address to dial, also the name in known_hosts.
	Address string
	// Port is the TCP port. Zero means 22.
	Port int
	// User is the remote login; empty means the local user's name.
	User string
	// IdentityFiles are private keys, tried in this order and before the agent's other keys. ~ is
	// already expanded.
	IdentityFiles []string
	// CertificateFiles are certificates in addition to those next to their keys.
	CertificateFiles []string
	// IdentitiesOnly disables the agent's other keys.
	IdentitiesOnly bool
	// Agent is the agent's socket. Empty means the dialer's socket, "none" means no agent.
	Agent string
	// HostKeyAlias, if set, replaces Address and Port in the lookup in known_hosts.
	HostKeyAlias string
	// KnownHosts are the files that hold the accepted host keys.
	KnownHosts []string
	// Jump are the jump hosts, the nearest first.
	Jump []Target
	// SSHArgs are additional connection options of ssh (-F, -i, -J, -l, -o, -p). The fields above override
	// them, and they override the client configuration.
	SSHArgs []string

	// Sudo is the user that runs every command and writes every file on the node, for dialers with
	// sudo. It is empty for the login user.
	Sudo string

	// ControlPaths are sockets of OpenSSH masters that share their connection to the node. Empty
	// but not nil means none.
	ControlPaths []string
	// BatchMode disables all prompts. NoPassword and NoInteractive disable only the methods password
	// and keyboard-interactive.
	BatchMode, NoPassword, NoInteractive bool

	alias        string // name of the node for ssh, if not Address
	proxyCommand string // from the client configuration; only OpenSSH runs it
	givenKnown   bool   // KnownHosts does not come from the client configuration
	hostCommand  bool   // the client configuration has a KnownHostsCommand
	openSSH      bool   // dsbuild reaches the node through OpenSSH

	methods   []string   // of authentication that the client configuration allows, the first to try first
	family    string     // tcp4 or tcp6, or empty for both
	allowed   algorithms // by the client configuration
	setEnv    []string   // variables of its commands by the client configuration, as NAME=VALUE
	switchOff []string   // settings of the client configuration that OpenSSH must not apply, as KEY=VALUE

	resolved bool // the client configuration is applied; it must not be applied twice
	jump     bool // it is a jump host
}

// allows reports whether the configuration allows a method of authentication.
func (t Target) allows(method string) bool {
	return slices.Contains(t.methods, method) && !(method == byPassword && t.NoPassword) &&
		!(method == interactively && t.NoInteractive)
}

// word returns the name of the node for ssh.
func (t Target) word() string { return cmp.Or(t.alias, t.Address) }

// Command is a program to run on a node.
type Command struct {
	// Argv is the program and its arguments, to be quoted for the remote shell.
	Argv []string
	// Env are environment variables, also quoted.
	Env map[string]string
	// EnvNames are the names of the variables in Stdin, for a log.
	EnvNames []string
	// Setup is a shell line that runs first in the same shell (conda, modules). It is not quoted,
	// because it is shell code. If it fails, its status is the command's and the program does not
	// run.
	Setup string
	// About describes the request in Stdin for a log. It may be empty.
	About string
	// Stdin, Stdout and Stderr may each be nil.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Upload is one file to put on a node.
type Upload struct {
	// Open returns a new reader over the local file, from its beginning.
	Open func() (io.ReadSeekCloser, error)
	// Size and SHA256 (hex) are compared with the remote file before the rename.
	Size   int64
	SHA256 string
	// Path is the absolute path of the file on the node. The file appears there atomically.
	Path string
	Mode fs.FileMode
	// Progress, if set, is called with the number of bytes sent, including those of an earlier attempt.
	Progress func(n int64)
	// Limit, if set, limits the bytes per second of all uploads that share it. Its burst must be at
	// least LimitBurst.
	Limit *rate.Limiter
	// Sum, if set, returns the sha256 (hex) of the first n bytes of a file on the node. It is for
	// callers whose program on the node can compute it. Without Sum, Put starts a program for it.
	Sum func(ctx context.Context, path string, n int64) (string, error)
}

// PartSuffix is the suffix of incomplete files.
const PartSuffix = ".part"

// LimitBurst is the least burst of Upload.Limit, the size of a packet.
const LimitBurst = packet

// Runner runs a command on a node. If the program ends with a code other than 0, the error is an
// *ExitError. If the connection breaks, the error is ErrLost. When ctx ends, Run abandons the
// remote program and returns ctx's error.
type Runner interface {
	Run(ctx context.Context, cmd Command) error
}

// Conn is an open connection to one node. Put writes the file to Path+PartSuffix, in a directory that only
// the caller uses, verifies its length and sha256 on the node, and renames it. If the connection breaks,
// the received bytes stay, and a retry resumes after the verified prefix.
type Conn interface {
	Runner
	Put(ctx context.Context, up Upload) error
	Close() error
}

// Dialer opens connections. Its errors wrap one of the sentinels below. A Dialer that holds
// resources beyond its connections is an io.Closer.
type Dialer interface {
	Dial(ctx context.Context, t Target) (Conn, error)
}

// Sentinels for failures between this machine and a node. The caller may retry after ErrDial and
// ErrLost, but not after the others.
var (
	ErrDial    = errors.New("cannot connect")
	ErrAuth    = errors.New("authentication failed")
	ErrBanned  = errors.New("temporarily blocked by sshd (PerSourcePenalties)")
	ErrHostKey = errors.New("host key verification failed")
	ErrSudo    = errors.New("sudo failed")
	ErrLost    = errors.New("lost connection")
	ErrNoSpace = errors.New("no space left on the node")
)

// ExitError means that a remote program ran and failed.
type ExitError struct {
	// Code is its exit status, or -1 when a signal ended it.
	Code int
	// Signal is the signal's name without SIG, or "".
	Signal string
}

func (e *ExitError) Error() string {
	if e.Signal != "" {
		return "killed by signal " + e.Signal
	}
	return fmt.Sprintf("exit status %d", e.Code)
}
