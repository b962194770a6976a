// Package remote is a connection to a node: it runs a command there and puts
// a file there, over SSH and SFTP, with strict host keys.
package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"golang.org/x/time/rate"
)

// Target is everything needed to reach one node, as plain resolved values.
type Target struct {
	// Name is what messages call the node.
	Name string
	// Node is the node's own name, for ways to it that know nodes by their names.
	Node string
	// Address is the host name or IP address to dial; known_hosts is searched for it.
	Address string
	// Port is the TCP port; 0 means 22.
	Port int
	// User is the remote login; empty means the local user's name.
	User string
	// IdentityFiles are private keys, tried in this order and before what else
	// the agent holds; ~ is expanded already.
	IdentityFiles []string
	// CertificateFiles are certificates beside those that lie beside their keys.
	CertificateFiles []string
	// IdentitiesOnly offers no key but those of IdentityFiles, whatever the agent holds.
	IdentitiesOnly bool
	// Agent is the agent's socket; "" is the dialer's, "none" is no agent.
	Agent string
	// HostKeyAlias, if set, is what known_hosts is searched for in place of Address and Port.
	HostKeyAlias string
	// KnownHosts are the files that hold the accepted host keys.
	KnownHosts []string
	// Jump are the hosts to go through, the nearest first.
	Jump []Target

	// Sudo is the user that everything on the node is done as, for dialers that
	// know of it; "" is the one that logs in.
	Sudo string

	// ControlPaths are sockets at which an OpenSSH that is connected to the node
	// lets others ride along; none: not nil, and empty.
	ControlPaths []string
	// BatchMode asks a person nothing, NoPassword and NoInteractive not by the
	// methods password and keyboard-interactive.
	BatchMode, NoPassword, NoInteractive bool

	alias        string // what ssh is given in its configuration's place of Address; "" is Address
	proxyCommand string // of the client configuration: for OpenSSH alone
	givenKnown   bool   // KnownHosts is not the client configuration's
	hostCommand  bool   // the client configuration has a KnownHostsCommand
	openSSH      bool   // it is reached by way of OpenSSH

	resolved bool // the client configuration has had its say: it must not be asked twice
	jump     bool // it is on the way to others
}

// word is what ssh calls the node.
func (t Target) word() string { return cmp.Or(t.alias, t.Address) }

// Command is one program run on a node.
type Command struct {
	// Argv is the program and its arguments; each word is quoted for the remote shell.
	Argv []string
	// Env are variables set for the program, quoted likewise.
	Env map[string]string
	// EnvNames are variables whose values Stdin brings, for a log.
	EnvNames []string
	// Setup is a shell line run before, in the same shell (conda, modules). Not
	// quoted: it is shell. If it fails, its status is the command's and nothing else runs.
	Setup string
	// About says what the program is asked by what Stdin brings, for a log; "" for nothing.
	About string
	// Stdin, Stdout and Stderr may each be nil.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Upload is one file to put on a node.
type Upload struct {
	// Open returns a new reader over the local file, from its beginning.
	Open func() (io.ReadSeekCloser, error)
	// Size and SHA256 (hex) are checked at the far end before the rename.
	Size   int64
	SHA256 string
	// Path is the absolute path the file appears at, whole or not at all.
	Path string
	Mode fs.FileMode
	// Progress, if set, is told how many more bytes are on their way, each time
	// there are some; those that are there from an earlier try count too.
	Progress func(n int64)
	// Limit, if set, is how many bytes per second go out altogether to those
	// that share it. Its burst must be at least LimitBurst.
	Limit *rate.Limiter
	// Sum, if set, says what the sha256 (hex) of the first n bytes of a file on
	// the node is: for callers with a program there that can tell it. Without
	// one a program is started for it.
	Sum func(ctx context.Context, path string, n int64) (string, error)
	// Write, if set, has a program on the node append what r brings to the file at
	// path, which has at bytes, and says the sha256 (hex) of all of it: for large files,
	// which SFTP has one process write and another read again. SFTP makes the file and
	// brings it to its place all the same; ways without SFTP do not ask.
	Write func(ctx context.Context, path string, at int64, r io.Reader) (string, error)
	// Resume is for a file on its way to elsewhere, in a folder that is the
	// caller's alone. What a broken connection leaves of it stays under
	// Path+PartSuffix, and the next try goes on from as much of that as is
	// proven to be the same. It is not synced to the disk.
	Resume bool
}

// PartSuffix ends the name of a file that has not arrived whole.
const PartSuffix = ".part"

// LimitBurst is the least burst of Upload.Limit: the size of a packet.
const LimitBurst = packet

// Runner runs a command on a node. A program that ends with another code than
// 0 gives an *ExitError; a broken connection gives an error that is ErrLost.
// When ctx ends the remote program is abandoned and ctx's error returned.
type Runner interface {
	Run(ctx context.Context, cmd Command) error
}

// Conn is an open connection to one node. Put writes beside the target under
// a private temporary name, compares length and sha256 at the far end, renames,
// and removes the temporary file on any failure.
type Conn interface {
	Runner
	Put(ctx context.Context, up Upload) error
	Close() error
}

// Dialer opens connections. Errors wrap one of the sentinels below. One that holds
// something beyond its connections is an io.Closer.
type Dialer interface {
	Dial(ctx context.Context, t Target) (Conn, error)
}

// Spreader is what a Dialer can be that brings a file to many nodes in one go.
type Spreader interface {
	// Announce says that the file with this digest is going to be put on these
	// nodes, by Target.Node. It only makes the uploads cheaper.
	Announce(sha256 string, nodes []string)
}

// Sentinels for what went wrong between here and a node. ErrDial and ErrLost
// may be retried; the others may not.
var (
	ErrDial    = errors.New("no connection")
	ErrAuth    = errors.New("authentication refused")
	ErrBanned  = errors.New("this machine is banned for a while")
	ErrHostKey = errors.New("host key not accepted")
	ErrSudo    = errors.New("sudo refused")
	ErrLost    = errors.New("connection lost")
	ErrNoSpace = errors.New("no space left on the node")
)

// ExitError is a remote program that ran and failed.
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
