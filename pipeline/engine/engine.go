// Package engine finds a Dagger engine that answers, or a docker, podman or nerdctl in which the Dagger
// client starts one.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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

// Version is the Dagger release of the client library, whose engine is run.
const Version = "v0.21.7"

// Image is the engine's image, by the name under which the Dagger client knows it.
const Image = "registry.dagger.io/engine:" + Version

// CLIVariable names the dagger program to use. The Dagger client reads it, too.
const CLIVariable = "_EXPERIMENTAL_DAGGER_CLI_BIN"

// Engine is a Dagger engine that answered, or one that the Dagger client reaches or starts.
type Engine struct {
	Address string // unix://…, tcp://…, image+docker://…
	CLI     string // the dagger program to use (default: the client downloads it)
	How     string // where it was found, human-readable
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
	lines := []string{"no Dagger engine reachable; tried"}
	for _, a := range e.Attempts {
		lines = append(lines, fmt.Sprintf("  %s: %s", a.Where, a.Why))
	}
	return strings.Join(lines, "\n")
}

// Hint returns the ways to get an engine.
func (e *NotFoundError) Hint() string {
	for _, a := range e.Attempts {
		if a.Hint != "" {
			return a.Hint
		}
	}
	return "start Docker or podman, or as root on Debian run 'make engine', " +
		"or pass --engine unix:///path/engine.sock, or build on this machine: --builder host"
}

// Home is the directory of dsbuild's own engine.
func Home() string { return filepath.Join(xdg.StateHome, "dsbuild", "engine") }

// Finder looks for an engine.
type Finder struct {
	Flag     string                       // --engine
	Env      string                       // DSBUILD_ENGINE
	CLI      string                       // the configured dagger program, or ""
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
// yet: the Dagger client starts it.
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
		if given.address == "" {
			continue
		}
		err := answers(ctx, given.address)
		switch {
		case fault.ExitCode(err) == fault.Usage:
			return Engine{}, fmt.Errorf("%s: %w", given.where, err)
		case err != nil:
			return Engine{}, &NotFoundError{[]Attempt{{Where: given.where + " " + given.address, Why: reason(err)}}}
		}
		return Engine{Address: given.address, How: given.where}, nil
	}
	own := Engine{Address: "unix://" + filepath.Join(f.Home, "run", "engine.sock"), How: "dsbuild's own engine"}
	silent := answers(ctx, own.Address)
	if silent == nil {
		return own, nil
	}
	var attempts []Attempt
	for _, client := range []string{"docker", "podman", "nerdctl"} {
		err := f.serves(ctx, client)
		if err == nil {
			return Engine{Address: "image+" + client + "://" + Image, How: client}, nil
		}
		attempts = append(attempts, Attempt{client, err.Error(), fault.Hint(err)})
	}
	if err := f.start(ctx, own.Address, silent); err != nil {
		first := Attempt{Where: "dsbuild's own engine in " + f.Home, Why: reason(err)}
		return Engine{}, &NotFoundError{append([]Attempt{first}, attempts...)}
	}
	return own, nil
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

// serves returns why an engine will not work with a container client, or nil: a client without a daemon
// is of no use, and podman without root can start an engine that can neither unpack a base nor run a step.
func (f *Finder) serves(ctx context.Context, client string) error {
	path, err := f.LookPath(client)
	if err != nil {
		return errors.New("not installed")
	}
	withoutRoot := errors.New("runs without root, but an engine needs root")
	if client == "podman" && !f.Root && runtime.GOOS == "linux" {
		return withoutRoot // a mere query would leave podman's pause process running
	}
	ctx, cancel := context.WithTimeout(ctx, daemonTime)
	defer cancel()
	args := []string{"version", "--format", "{{.Server.Version}}"}
	if client == "podman" {
		args = []string{"info", "--format", "rootless: {{.Host.Security.Rootless}}"}
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = 100 * time.Millisecond // a wrapper's child may hold the pipe
	out, err := cmd.CombinedOutput()
	said := lastLine(string(out))
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("the daemon did not respond within %s", daemonTime)
	case err == nil && said == "rootless: true":
		return withoutRoot
	case err == nil:
		return nil
	case client == "docker" && strings.Contains(strings.ToLower(said), "permission denied"):
		return fault.WithHint(fmt.Errorf("the daemon denies access to this user (%s)", said),
			"add the user to the group docker, whose members have the rights of root: "+
				"sudo usermod -aG docker \"$USER\", then log in again; without an engine: --builder host")
	}
	return fmt.Errorf("cannot reach the daemon (%s)", cmp.Or(said, err.Error()))
}

// CheckAddress rejects a text that is not an engine's address.
func CheckAddress(address string) error {
	_, _, err := dialTarget(address)
	return err
}

// dialTarget returns where to dial an address. It returns "" if only the Dagger client can reach it.
func dialTarget(address string) (network, target string, err error) {
	u, err := url.Parse(address)
	if err != nil {
		u = &url.URL{}
	}
	kind, _, _ := strings.Cut(u.Scheme, "+")
	switch {
	case u.Scheme == "unix":
		return "unix", u.Path, nil
	case u.Scheme == "tcp", u.Scheme == "tls":
		return "tcp", u.Host, nil
	case slices.Contains([]string{"ssh", "kube-pod", "image", "container"}, kind):
		return "", "", nil
	}
	return "", "", fault.New(fault.Usage,
		"write unix:///path/engine.sock, tcp://host:port, image+docker://REF or container+docker://NAME "+
			"(or podman, nerdctl), ssh://HOST or kube-pod://POD",
		"%q is not the address of an engine", address)
}

// answers dials an address. It leaves addresses that cannot be dialled from here to the Dagger
// client.
func answers(ctx context.Context, address string) error {
	network, target, err := dialTarget(address)
	if err != nil || network == "" {
		return err
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
	return strings.TrimSpace(s[strings.LastIndexByte(s, '\n')+1:])
}

// findCLI returns the dagger program to use: the configured one, else that of dsbuild's own engine.
// If there is neither, it announces that the Dagger client will download the program, and returns "".
func (f *Finder) findCLI() (string, error) {
	if f.CLI != "" {
		path, err := exec.LookPath(f.CLI)
		if err != nil {
			return "", fault.WithHint(fmt.Errorf("%s=%s: %w", CLIVariable, f.CLI, err),
				"set it to the dagger program of version %s, or unset it to let dsbuild download one", Version)
		}
		return path, nil
	}
	path := filepath.Join(f.Home, "bin", "dagger")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if _, err := os.Stat(downloadedCLI()); err != nil {
		f.Note("downloading the dagger program once, from %s to %s; without internet access, copy it there (docs/build.md)",
			cliURL(), downloadedCLI())
	}
	return "", nil
}

// downloadedCLI returns the path where the Dagger client keeps the program that it downloads.
func downloadedCLI() string {
	name := "dagger-" + strings.TrimPrefix(Version, "v")
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return filepath.Join(xdg.CacheHome, "dagger", name)
}

// cliURL returns the URL from which the Dagger client downloads its program.
func cliURL() string {
	ending := "tar.gz"
	if runtime.GOOS == "windows" {
		ending = "zip"
	}
	return fmt.Sprintf("https://dl.dagger.io/dagger/releases/%s/dagger_%s_%s_%s.%s",
		strings.TrimPrefix(Version, "v"), Version, runtime.GOOS, runtime.GOARCH, ending)
}
