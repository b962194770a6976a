// Package engine finds a Dagger engine that answers and connects to it.
//
// Nothing is asked of the Dagger client before an engine is known to answer:
// its Connect waits 300 s on a dead address and does not heed its context.
package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/adrg/xdg"
)

// answerTime is how long an engine or a container daemon may take to answer.
const answerTime = 2 * time.Second

// Engine is a Dagger engine that answered.
type Engine struct {
	Address string // unix://…, tcp://…; "" lets the Dagger client start one in How's containers
	CLI     string // the dagger program to talk through; "" lets the client fetch it
	How     string // where it was found, for people
}

// Attempt is one place that was looked at in vain.
type Attempt struct {
	Where, Why string
}

// NotFoundError lists what was looked for.
type NotFoundError struct {
	Attempts []Attempt
}

func (e *NotFoundError) Error() string {
	lines := []string{"no Dagger engine is reachable; looked for"}
	for _, a := range e.Attempts {
		lines = append(lines, fmt.Sprintf("  %s: %s", a.Where, a.Why))
	}
	return strings.Join(lines, "\n")
}

// Hint says how to get an engine.
func (e *NotFoundError) Hint() string {
	return "start Docker or podman, or as root on Debian run 'make engine', or name an engine with --engine unix:///path/engine.sock"
}

// Home is the directory of dsbuild's own engine.
func Home() string { return filepath.Join(xdg.StateHome, "dsbuild", "engine") }

// Finder looks for an engine.
type Finder struct {
	Flag string                       // --engine; "" if not given
	Env  string                       // DSBUILD_ENGINE
	Home string                       // directory of dsbuild's own engine
	Root bool                         // whether the user may start it
	Note func(string, ...any)         // told what is started
	Look func(string) (string, error) // exec.LookPath
}

// NewFinder looks where the design says: --engine, DSBUILD_ENGINE, dsbuild's
// own engine, then docker, podman and nerdctl.
func NewFinder(flag string, note func(string, ...any)) *Finder {
	return &Finder{
		Flag: flag, Env: os.Getenv("DSBUILD_ENGINE"), Home: Home(), Root: os.Geteuid() == 0,
		Note: note, Look: exec.LookPath,
	}
}

// Find returns the first engine that answers, or a *NotFoundError. An address
// that is given but does not answer is final: nothing else is tried.
func (f *Finder) Find(ctx context.Context) (Engine, error) {
	for _, given := range []struct{ where, address string }{{"--engine", f.Flag}, {"DSBUILD_ENGINE", f.Env}} {
		if given.address == "" {
			continue
		}
		err := answers(ctx, given.address)
		var bad *AddressError
		if errors.As(err, &bad) {
			return Engine{}, fmt.Errorf("%s: %w", given.where, err)
		}
		if err != nil {
			return Engine{}, &NotFoundError{[]Attempt{{given.where + " " + given.address, reason(err)}}}
		}
		return Engine{Address: given.address, CLI: f.cli(), How: given.where}, nil
	}
	own := Engine{Address: "unix://" + filepath.Join(f.Home, "run", "engine.sock"), CLI: f.cli(), How: "dsbuild's own engine"}
	silent := answers(ctx, own.Address)
	if silent == nil {
		return own, nil
	}
	attempts := []Attempt{}
	for _, client := range []string{"docker", "podman", "nerdctl"} {
		if err := f.daemon(ctx, client); err != nil {
			attempts = append(attempts, Attempt{client, reason(err)})
			continue
		}
		return Engine{CLI: f.cli(), How: client}, nil
	}
	if err := f.start(ctx, own.Address, silent); err != nil {
		first := Attempt{"dsbuild's own engine in " + f.Home, reason(err)}
		return Engine{}, &NotFoundError{append([]Attempt{first}, attempts...)}
	}
	return own, nil
}

// start brings dsbuild's own engine up where it is installed and the user may;
// silent is why it does not answer.
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

// cli is the dagger program that came with dsbuild's own engine, or "".
func (f *Finder) cli() string {
	path := filepath.Join(f.Home, "bin", "dagger")
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// daemon asks a container client for its daemon: a client without one is none.
func (f *Finder) daemon(ctx context.Context, client string) error {
	path, err := f.Look(client)
	if err != nil {
		return errors.New("not installed")
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "version", "--format", "{{.Server.Version}}")
	cmd.WaitDelay = 100 * time.Millisecond // a wrapper's child may hold the pipe
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return errors.New("its daemon does not answer within 2 s")
	}
	if err != nil {
		return fmt.Errorf("client without a daemon (%s)", lastLine(string(out)))
	}
	return nil
}

// AddressError is an engine address of no known kind.
type AddressError struct {
	Address string
}

func (e *AddressError) Error() string { return fmt.Sprintf("%q is no address of an engine", e.Address) }

// Hint lists the kinds.
func (e *AddressError) Hint() string {
	return "an address is unix:///path/engine.sock, tcp://host:port, or one of " + strings.Join(clientSchemes(), ", ") + " as the Dagger client takes them"
}

// ExitCode is that of wrong usage.
func (e *AddressError) ExitCode() int { return 2 }

// clientSchemes are the kinds of address that only the Dagger client can reach.
func clientSchemes() []string {
	return []string{"ssh", "kube-pod", "container", "docker-container", "podman-container", "docker-image", "image"}
}

// answers dials an address. What cannot be dialled from here is left to the
// Dagger client.
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

// reason shortens what a failed dial says.
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
