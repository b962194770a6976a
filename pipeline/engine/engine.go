// Package engine finds a Dagger engine that answers, or starts one in a container if docker,
// podman or nerdctl is there.
//
// dsbuild uses the Dagger client only after an engine has answered: the client's Connect waits
// 300 s on a dead address and ignores the end of its context.
package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/internal/fault"
)

const (
	// answerTime is how long an engine may take to answer.
	answerTime = 2 * time.Second
	// daemonTime is how long a container client may take to answer: podman does
	// some work at each start, on a busy machine for seconds.
	daemonTime = 5 * time.Second
)

// Engine is a Dagger engine that answered.
type Engine struct {
	Address string // unix://…, tcp://…, image+docker://…: the last is started by Container.Up
	CLI     string // the dagger program to talk through; "" lets the client download it
	How     string // where it was found, for people
}

// Attempt is one place where dsbuild looked in vain.
type Attempt struct {
	Where, Why string
	Hint       string // how to make this place work; may be ""
}

// NotFoundError lists the places where dsbuild looked for an engine.
type NotFoundError struct {
	Attempts []Attempt
}

func (e *NotFoundError) Error() string {
	lines := []string{"no Dagger engine is reachable; dsbuild tried"}
	for _, a := range e.Attempts {
		lines = append(lines, fmt.Sprintf("  %s: %s", a.Where, a.Why))
	}
	return strings.Join(lines, "\n")
}

// Hint says how to get an engine.
func (e *NotFoundError) Hint() string {
	for _, a := range e.Attempts {
		if a.Hint != "" {
			return a.Hint
		}
	}
	return "start Docker or podman, or as root on Debian run 'make engine', or name an engine with --engine unix:///path/engine.sock"
}

// Home is the directory of dsbuild's own engine.
func Home() string { return filepath.Join(xdg.StateHome, "dsbuild", "engine") }

// Finder looks for an engine.
type Finder struct {
	Flag     string                       // --engine; "" if not given
	Env      string                       // DSBUILD_ENGINE
	CLI      string                       // the dagger program that the user names; "" if none
	Home     string                       // directory of dsbuild's own engine
	Root     bool                         // whether the user may start it
	Note     func(string, ...any)         // prints a message for the user
	LookPath func(string) (string, error) // exec.LookPath
}

// NewFinder returns a Finder that looks in the documented order: --engine, DSBUILD_ENGINE,
// dsbuild's own engine, then docker, podman and nerdctl.
func NewFinder(flag string, note func(string, ...any)) *Finder {
	return &Finder{
		Flag: flag, Env: os.Getenv("DSBUILD_ENGINE"), CLI: os.Getenv(CLIVariable), Home: Home(), Root: os.Geteuid() == 0,
		Note: note, LookPath: exec.LookPath,
	}
}

// Find returns the first engine that answers, or a *NotFoundError. If the user gives an address
// and it does not answer, Find tries nothing else. The engine of a container client need not run
// yet: Container.Up starts it.
func (f *Finder) Find(ctx context.Context) (Engine, error) {
	found, err := f.find(ctx)
	if err != nil {
		return Engine{}, err
	}
	found.CLI, err = f.findCLI()
	return found, err
}

func (f *Finder) find(ctx context.Context) (Engine, error) {
	for _, given := range []struct{ where, address string }{{"--engine", f.Flag}, {"DSBUILD_ENGINE", f.Env}} {
		if given.address != "" {
			return f.findGiven(ctx, given.where, given.address)
		}
	}
	own := Engine{Address: "unix://" + filepath.Join(f.Home, "run", "engine.sock"), How: "dsbuild's own engine"}
	silent := answers(ctx, own.Address)
	if silent == nil {
		return own, nil
	}
	client, attempts := f.findClient(ctx, containerClients(), f.serves)
	if client != "" {
		return Engine{Address: "image+" + client + "://" + Image, How: client}, nil
	}
	if err := f.start(ctx, own.Address, silent); err != nil {
		first := Attempt{Where: "dsbuild's own engine in " + f.Home, Why: reason(err)}
		return Engine{}, &NotFoundError{append([]Attempt{first}, attempts...)}
	}
	return own, nil
}

// findGiven returns the engine at an address that the user gave.
func (f *Finder) findGiven(ctx context.Context, where, address string) (Engine, error) {
	err := answers(ctx, address)
	var bad *AddressError
	if errors.As(err, &bad) {
		return Engine{}, fmt.Errorf("%s: %w", where, err)
	}
	if err != nil {
		return Engine{}, &NotFoundError{[]Attempt{{Where: where + " " + address, Why: reason(err)}}}
	}
	scheme, rest, _ := strings.Cut(address, "://")
	kind, ok := containerKinds()[scheme]
	if !ok {
		return Engine{Address: address, How: where}, nil
	}
	clients := containerClients()
	if kind[1] != "" {
		clients = []string{kind[1]}
	}
	client, attempts := f.findClient(ctx, clients, f.daemon)
	if client == "" {
		return Engine{}, &NotFoundError{attempts}
	}
	return Engine{Address: kind[0] + "+" + client + "://" + rest, How: where}, nil
}

// findClient returns the first container client that passes a check, or for each client why it
// does not.
func (f *Finder) findClient(ctx context.Context, clients []string, check func(context.Context, string) error) (client string, attempts []Attempt) {
	for _, client := range clients {
		err := check(ctx, client)
		if err == nil {
			return client, nil
		}
		attempts = append(attempts, Attempt{client, reason(err), fault.Hint(err)})
	}
	return "", attempts
}

// start starts dsbuild's own engine if it is installed and the user may start it; silent is the
// reason why it does not answer.
func (f *Finder) start(ctx context.Context, address string, silent error) error {
	control := filepath.Join(f.Home, "bin", "enginectl")
	if _, err := os.Stat(control); err != nil {
		return errors.New("not installed")
	}
	if !f.Root {
		return fmt.Errorf("installed, not running, and only root can start it (%s)", reason(silent))
	}
	f.Note("starting dsbuild's own engine")
	if out, err := exec.CommandContext(ctx, control, "start").CombinedOutput(); err != nil {
		return fmt.Errorf("start: %w: %s", err, lastLine(string(out)))
	}
	return answers(ctx, address)
}

// serves returns why an engine will not work with a container client, or nil. podman without root
// can start an engine, but the engine can neither unpack a base nor run a step.
func (f *Finder) serves(ctx context.Context, client string) error {
	if err := f.daemon(ctx, client); err != nil || client != "podman" {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, daemonTime)
	defer cancel()
	rootless, err := Container{Client: client}.output(ctx, "info", "--format", "{{.Host.Security.Rootless}}")
	if err == nil && strings.TrimSpace(rootless) == "true" {
		return errors.New("runs without root, but an engine needs root")
	}
	return err
}

// daemon asks a container client for its daemon: a client without one is of no use.
func (f *Finder) daemon(ctx context.Context, client string) error {
	path, err := f.LookPath(client)
	if err != nil {
		return errors.New("not installed")
	}
	ctx, cancel := context.WithTimeout(ctx, daemonTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "version", "--format", "{{.Server.Version}}")
	cmd.WaitDelay = 100 * time.Millisecond // a wrapper's child may hold the pipe
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return fmt.Errorf("its daemon did not answer within %s", daemonTime)
	}
	if err == nil {
		return nil
	}
	said := lastLine(string(out))
	if client == "docker" && strings.Contains(strings.ToLower(said), "permission denied") {
		return fault.WithHint(fmt.Errorf("its daemon refuses this user (%s)", said),
			"add the user to the group docker, whose members have the rights of root: sudo usermod -aG docker \"$USER\", then log in again; without an engine: --builder host")
	}
	return fmt.Errorf("client without a daemon (%s)", said)
}

// AddressError is an engine address of no known kind.
type AddressError struct {
	Address string
}

func (e *AddressError) Error() string {
	return fmt.Sprintf("%q is not the address of an engine", e.Address)
}

// Hint lists the kinds.
func (e *AddressError) Hint() string {
	if strings.Contains(e.Address, "?") {
		return "dsbuild makes its container without options: make one with yours, and name it as container+docker://NAME"
	}
	return "write unix:///path/engine.sock, tcp://host:port, image+docker://REF or container+docker://NAME (or podman, nerdctl), ssh://HOST or kube-pod://POD"
}

// ExitCode is that of wrong usage.
func (e *AddressError) ExitCode() int { return 2 }

// clientSchemes are the kinds of address that only the Dagger client or a
// container client can reach.
func clientSchemes() []string {
	return append([]string{"ssh", "kube-pod"}, slices.Sorted(maps.Keys(containerKinds()))...)
}

// answers dials an address. It leaves addresses that cannot be dialled from here to the Dagger
// client.
func answers(ctx context.Context, address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return &AddressError{address}
	}
	network, target := "tcp", u.Host
	switch {
	case u.Scheme == "unix":
		network, target = "unix", u.Path
	case u.Scheme == "tcp", u.Scheme == "tls":
	case slices.Contains(clientSchemes(), u.Scheme):
		if _, container := containerKinds()[u.Scheme]; container && u.RawQuery != "" {
			return &AddressError{address}
		}
		return nil
	default:
		return &AddressError{address}
	}
	d := net.Dialer{Timeout: answerTime}
	conn, err := d.DialContext(ctx, network, target)
	if err != nil {
		return err
	}
	return conn.Close()
}

// reason shortens the error of a failed dial.
func reason(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "no such socket"
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err.Error()
	}
	return err.Error()
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = s[i+1:]
	}
	return s
}
