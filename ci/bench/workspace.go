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

	"github.com/dsbuild/dsbuild/internal/testkit/child"
	"github.com/dsbuild/dsbuild/internal/testkit/debian"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
)

// fleetSize is the number of nodes in the fleet; most parts use some of them.
const fleetSize = 64

// workspace is the directory in the user's cache in which all commands of a measurement run. It keeps
// everything that takes long to make for the next run.
//
//	nodes/     the fleet, with inventory.yaml and known_hosts
//	wheels/    the wheels to deploy
//	ansible/   Ansible's own files
//	relay/     the nodes of the part relay, with files like those here
//	build/     where wheels are built, with the toolchain
//	bin/bench  this program
//	logs/      the tools' output in the last run of each part
type workspace struct {
	dir    string
	commit string   // of the checkout at the start
	log    *os.File // the tools' output in the part that runs

	dsbuild  string // the program
	path     string // PATH of the commands
	versions []string
	fleet    *nodes.Fleet
	gauge    *gauge
	real     []string // wheels of DeepSpeed, relative to dir
	site     site     // where wheels are built
}

// close stops the nodes.
func (ws *workspace) close() error {
	if ws.fleet == nil {
		return nil
	}
	return ws.fleet.Down()
}

// logLine writes a line into the log.
func (ws *workspace) logLine(line string) { fmt.Fprintln(ws.log, line) }

// findProgram finds the program that make has compiled.
func (ws *workspace) findProgram(ctx context.Context) error {
	path, err := filepath.Abs("bin/dsbuild")
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	bin := filepath.Join(ws.dir, "bin")
	err = errors.Join(os.RemoveAll(bin), os.Mkdir(bin, 0o755), os.Symlink(self, filepath.Join(bin, "bench")))
	if err != nil {
		return err
	}
	ws.dsbuild, ws.path = path, strings.Join([]string{bin, filepath.Dir(path), os.Getenv("PATH")}, ":")
	return nil
}

// installTools installs missing tools: Ansible from its own package, the others from Debian's.
func (ws *workspace) installTools(ctx context.Context) error {
	programs := []string{"pdsh", "pdcp", "clush", "parallel-ssh", "parallel-scp", "ssh", "scp", "rsync"}
	packages := []string{"pdsh", "clustershell", "pssh", "openssh-client", "rsync"}
	missing := func() (names []string) {
		for _, p := range programs {
			if _, err := exec.LookPath(p); err != nil {
				names = append(names, p)
			}
		}
		return names
	}
	if len(missing()) > 0 && os.Geteuid() == 0 {
		ws.say("apt-get install %s", strings.Join(packages, " "))
		if err := debian.Ensure(ctx, func() bool { return len(missing()) == 0 }, packages...); err != nil {
			return err
		}
	}
	if m := missing(); len(m) > 0 {
		return fmt.Errorf("no %s here: install %s", strings.Join(m, ", "), strings.Join(packages, ", "))
	}
	ansible, err := python.Environment(ctx, python.EnvironmentOptions{Packages: []string{python.Ansible}, Log: ws.logLine})
	if err != nil {
		return err
	}
	ws.path = filepath.Join(ansible, "bin") + ":" + ws.path
	return ws.askVersions(ctx)
}

// askVersions records the exact versions of the compared programs.
func (ws *workspace) askVersions(ctx context.Context) error {
	for _, argv := range [][]string{
		{"dsbuild", "--version"},
		{"pdsh", "-V"},
		{"clush", "--version"},
		{"rsync", "--version"},
		{"parallel-ssh", "--version"},
		{"ansible", "--version"},
		{"ssh", "-V"},
	} {
		v, err := ws.readVersion(ctx, argv...)
		if err != nil {
			return err
		}
		ws.versions = append(ws.versions, strings.Join(argv[:1], " ")+": "+v)
	}
	return nil
}

// readVersion returns the first line of the version that a program prints.
func (ws *workspace) readVersion(ctx context.Context, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "env", argv...)
	cmd.Env = ws.commandEnv()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	line, _, _ := bytes.Cut(out, []byte("\n"))
	return strings.TrimSpace(string(line)), nil
}

// commandEnv returns the environment of all commands, without variables that affect their speed.
func (ws *workspace) commandEnv(more ...string) []string {
	env := []string{"PATH=" + cmp.Or(ws.path, os.Getenv("PATH")), "HOME=" + os.Getenv("HOME"), "LANG=C.UTF-8"}
	return append(env, more...)
}

// startNodes starts the fleet.
func (ws *workspace) startNodes(ctx context.Context) error {
	fleet, err := nodes.Up(ctx, nodes.Options{
		Dir: filepath.Join(ws.dir, "nodes"), Count: fleetSize, Env: nodes.WithTorch, Packages: []string{"pip==26.3"}, Log: ws.logLine,
	})
	if err != nil {
		return err
	}
	ws.fleet, ws.gauge = fleet, &gauge{fleet: fleet}
	return ws.writeConfigs()
}

// writeConfigs writes the other tools' configuration for the nodes. ssh_config selects the key exchange
// on which dsbuild and these servers agree; ssh_config.shipped has the tools' default.
func (ws *workspace) writeConfigs() error {
	var hosts, ansible, known strings.Builder
	for _, n := range ws.fleet.Nodes {
		fmt.Fprintf(&hosts, "Host %s\n  HostName %s\n", n.Name, n.Address)
		fmt.Fprintf(&ansible, "%s ansible_python_interpreter=%s\n", n.Name, n.Python)
		fmt.Fprintln(&known, n.Name)
	}
	common := fmt.Sprintf("Host *\n  User %s\n  Port %d\n  IdentityFile %s\n  IdentitiesOnly yes\n  UserKnownHostsFile %s\n",
		ws.fleet.User, ws.fleet.Nodes[0].Port, ws.fleet.IdentityFile, ws.fleet.KnownHosts)
	var err error
	for name, text := range map[string]string{
		"ssh_config":         hosts.String() + common + "  KexAlgorithms curve25519-sha256\n",
		"ssh_config.shipped": hosts.String() + common,
		"ssh_config.gcm":     hosts.String() + common + "  KexAlgorithms curve25519-sha256\n  Ciphers aes128-gcm@openssh.com\n",
		"hosts":              known.String(),
		"ansible.ini":        ansible.String(),
		"deploy.yml":         deployPlaybook,
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(ws.dir, name), []byte(text), 0o644))
	}
	return err
}

// buildWheels builds two wheels for different GPUs, or finds them in the cache, so that each deploy
// replaces a different wheel.
func (ws *workspace) buildWheels(ctx context.Context) error {
	engine := child.Command(ctx, "bin/ci/engine", "ensure")
	engine.Stdout, engine.Stderr = ws.log, ws.log
	if err := engine.Run(); err != nil {
		return fmt.Errorf("bin/ci/engine ensure: %w (its output is in %s)", err, ws.log.Name())
	}
	ws.real = nil
	for _, arch := range []string{"8.0", "8.6"} {
		ws.say("dsbuild wheel --arch %s", arch)
		dir := filepath.Join("wheels", arch)
		var out bytes.Buffer
		cmd := child.Command(ctx, ws.dsbuild, "wheel", "--arch", arch, "--json", "-o", dir)
		cmd.Dir, cmd.Stdout, cmd.Stderr = ws.dir, &out, ws.log
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("dsbuild wheel --arch %s: %w (its output is in %s)", arch, err, ws.log.Name())
		}
		var doc struct {
			Wheels []struct {
				Path string `json:"path"`
			} `json:"wheels"`
		}
		if err := json.Unmarshal(out.Bytes(), &doc); err != nil || len(doc.Wheels) != 1 {
			return fmt.Errorf("dsbuild wheel --json printed no wheel: %w", err)
		}
		ws.real = append(ws.real, filepath.Join(dir, filepath.Base(doc.Wheels[0].Path)))
	}
	if ws.gauge != nil {
		ws.gauge.passOver()
	}
	return nil
}
