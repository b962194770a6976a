//go:build linux

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/dsbuild/dsbuild/ci/child"
	"github.com/dsbuild/dsbuild/ci/debian"
	"github.com/dsbuild/dsbuild/ci/nodes"
	"github.com/dsbuild/dsbuild/ci/python"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// fleetSize is how many nodes there are; most parts use some of them.
const fleetSize = 64

// yard is where it is measured: a folder of the user's cache, in which all
// commands run. It keeps what took long to make for the next run.
//
//	nodes/     the fleet, with inventory.yaml and known_hosts
//	wheels/    that are deployed
//	ansible/   Ansible's environment
//	build/     where wheels are built, with the toolchain
//	bin/bench  this program
//	log        what the tools said in the last run
type yard struct {
	cache  string // dsbuild's folder in the user's cache
	dir    string
	rounds int // 0: as the part says
	ui     ui.Reporter
	lock   *os.File
	log    *os.File
	got    []string

	dsbuild  string // the program
	path     string // PATH of the commands
	versions []string
	fleet    *nodes.Fleet
	gauge    *gauge
	real     []string // wheels of DeepSpeed, relative to dir
	big      []string // the same with ballast
	site     site     // where wheels are built
}

// newYard locks the folder: two runs would measure each other.
func newYard(cache string, rounds int, r ui.Reporter) (*yard, error) {
	y := &yard{cache: cache, dir: filepath.Join(cache, "bench"), rounds: rounds, ui: r}
	if err := os.MkdirAll(y.dir, 0o755); err != nil {
		return nil, err
	}
	var err error
	if y.lock, err = os.OpenFile(filepath.Join(y.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(y.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		y.lock.Close()
		return nil, fmt.Errorf("another run of the benchmarks holds %s: %w", y.lock.Name(), err)
	}
	if y.log, err = os.Create(filepath.Join(y.dir, "log")); err != nil {
		y.lock.Close()
		return nil, err
	}
	return y, nil
}

// close stops the nodes.
func (y *yard) close() error {
	defer y.lock.Close()
	defer y.log.Close()
	if y.fleet == nil {
		return nil
	}
	return y.fleet.Down()
}

// program finds what make has compiled.
func (y *yard) program(ctx context.Context, _ ui.Step) (string, error) {
	path, err := filepath.Abs("bin/dsbuild")
	if err != nil {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(y.dir, "bin")
	err = errors.Join(os.RemoveAll(bin), os.Mkdir(bin, 0o755), os.Symlink(self, filepath.Join(bin, "bench")))
	if err != nil {
		return "", err
	}
	y.dsbuild, y.path = path, strings.Join([]string{bin, filepath.Dir(path), os.Getenv("PATH")}, ":")
	return y.version(ctx, path, "version")
}

// peers makes sure that the other tools are there, as Debian has them, but
// Ansible as its makers publish it.
func (y *yard) peers(ctx context.Context, step ui.Step) (string, error) {
	programs := []string{"pdsh", "pdcp", "clush", "parallel-ssh", "parallel-scp", "ssh", "scp"}
	packages := []string{"pdsh", "clustershell", "pssh", "openssh-client"}
	missing := func() (names []string) {
		for _, p := range programs {
			if _, err := exec.LookPath(p); err != nil {
				names = append(names, p)
			}
		}
		return names
	}
	if len(missing()) > 0 && os.Geteuid() == 0 {
		step.Log("apt-get install " + strings.Join(packages, " "))
		if err := debian.Ensure(ctx, func() bool { return len(missing()) == 0 }, packages...); err != nil {
			return "", err
		}
	}
	if m := missing(); len(m) > 0 {
		return "", fmt.Errorf("no %s here: install %s", strings.Join(m, ", "), strings.Join(packages, ", "))
	}
	ansible := filepath.Join(y.dir, "ansible")
	if err := os.RemoveAll(ansible); err != nil {
		return "", err
	}
	bin, err := python.Ansible(ctx, ansible, step.Log)
	if err != nil {
		return "", err
	}
	y.path = bin + ":" + y.path
	return "", y.askVersions(ctx)
}

// askVersions notes what exactly is compared.
func (y *yard) askVersions(ctx context.Context) error {
	for _, argv := range [][]string{
		{"dsbuild", "version"}, {"pdsh", "-V"}, {"clush", "--version"}, {"parallel-ssh", "--version"},
		{"ansible", "--version"}, {"ssh", "-V"},
	} {
		v, err := y.version(ctx, argv...)
		if err != nil {
			return err
		}
		y.versions = append(y.versions, strings.Join(argv[:1], " ")+": "+v)
	}
	return nil
}

// version is the first line that a program says of itself.
func (y *yard) version(ctx context.Context, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "env", argv...)
	cmd.Env = y.environ()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	line, _, _ := bytes.Cut(out, []byte("\n"))
	return strings.TrimSpace(string(line)), nil
}

// environ is the environment of all commands: nothing that is set here makes
// one of them slower or faster.
func (y *yard) environ(more ...string) []string {
	env := []string{"PATH=" + cmp.Or(y.path, os.Getenv("PATH")), "HOME=" + os.Getenv("HOME"), "LANG=C.UTF-8"}
	return append(env, more...)
}

// nodes starts the fleet anew: what is left of a run that was killed has
// another parent.
func (y *yard) nodes(ctx context.Context, step ui.Step) (string, error) {
	dir := filepath.Join(y.dir, "nodes")
	if old, err := nodes.Open(dir); err == nil {
		if err := old.Down(); err != nil {
			return "", err
		}
	}
	fleet, err := nodes.Up(ctx, nodes.Options{
		Dir: dir, Count: fleetSize, Env: nodes.WithTorch, Packages: []string{"pip==26.3"}, Log: step.Log,
	})
	if err != nil {
		return "", err
	}
	y.fleet, y.gauge = fleet, &gauge{fleet: fleet}
	return "torch " + nodes.DefaultTorch + " on each", y.writeConfigs()
}

// writeConfigs writes what the other tools know the nodes by. With ssh_config
// they have the key exchange that dsbuild and these servers agree on, with
// ssh_config.shipped their own.
func (y *yard) writeConfigs() error {
	var hosts, ansible, known strings.Builder
	for _, n := range y.fleet.Nodes {
		fmt.Fprintf(&hosts, "Host %s\n  HostName %s\n", n.Name, n.Address)
		fmt.Fprintf(&ansible, "%s ansible_python_interpreter=%s\n", n.Name, n.Python)
		fmt.Fprintln(&known, n.Name)
	}
	common := fmt.Sprintf("Host *\n  User %s\n  Port %d\n  IdentityFile %s\n  IdentitiesOnly yes\n  UserKnownHostsFile %s\n",
		y.fleet.User, y.fleet.Nodes[0].Port, y.fleet.IdentityFile, y.fleet.KnownHosts)
	var err error
	for name, text := range map[string]string{
		"ssh_config":         hosts.String() + common + "  KexAlgorithms curve25519-sha256\n",
		"ssh_config.shipped": hosts.String() + common,
		"ssh_config.gcm":     hosts.String() + common + "  KexAlgorithms curve25519-sha256\n  Ciphers aes128-gcm@openssh.com\n",
		"hosts":              known.String(),
		"ansible.ini":        ansible.String(),
		"deploy.yml":         deployPlaybook,
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(y.dir, name), []byte(text), 0o644))
	}
	return err
}

// realWheels builds two wheels that differ in the GPU they are for, so that
// each deploy finds another one on the nodes. They come from the store if it has them.
func (y *yard) realWheels(ctx context.Context, step ui.Step) (string, error) {
	y.real = nil
	for _, arch := range []string{"8.0", "8.6"} {
		step.Log("dsbuild wheel --arch " + arch)
		dir := filepath.Join("wheels", arch)
		var out bytes.Buffer
		cmd := child.Command(ctx, y.dsbuild, "wheel", "--arch", arch, "--json", "-o", dir)
		cmd.Dir, cmd.Stdout, cmd.Stderr = y.dir, &out, y.log
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("dsbuild wheel --arch %s: %w (its output is in %s)", arch, err, y.log.Name())
		}
		var doc struct {
			Wheels []struct {
				Path string `json:"path"`
			} `json:"wheels"`
		}
		if err := json.Unmarshal(out.Bytes(), &doc); err != nil || len(doc.Wheels) != 1 {
			return "", fmt.Errorf("dsbuild wheel --json printed no wheel: %w", err)
		}
		y.real = append(y.real, filepath.Join(dir, filepath.Base(doc.Wheels[0].Path)))
	}
	y.gauge.passOver()
	return strings.Join(y.real, ", "), nil
}
