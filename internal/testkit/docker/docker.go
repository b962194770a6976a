//go:build linux

// Package docker gives tests their own real Docker daemon, or podman's service. Debian's
// programs run in namespaces: they touch nothing of this machine's network, mounts or
// containers, and leave nothing behind.
package docker

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/debian"
	"github.com/dsbuild/dsbuild/internal/testkit/enginetest"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
)

// Daemon is a running daemon.
type Daemon struct {
	Client string // its program: docker or podman
	Host   string // unix://…, for DOCKER_HOST or CONTAINER_HOST
	Data   string // the folder of its images and containers
	dir    string
	orders io.Writer
}

// upLimit is how long a daemon may take until it answers.
const upLimit = 60 * time.Second

//go:embed daemon.sh
var daemonScript string

//go:embed runc.py
var runcScript string

// Options are the properties of one daemon.
type Options struct {
	DataMB   int    // size of a disk in memory for Data; 0 takes the machine's disk
	Deny     string // a capability that no container gets, privileged or not
	Rootless bool   // podman alone: run by the user nobody
}

// Docker starts a Docker daemon that ends with the test. The variables of the
// test's process point to it.
func Docker(tb testing.TB, opt Options) *Daemon {
	tb.Helper()
	installDaemon(tb, "dockerd", "docker.io", "containerd", "runc", "iptables")
	d := newDaemon(tb, "docker", opt)
	args := []string{
		"dockerd", "--host", d.Host, "--data-root", d.Data, "--exec-root", d.path("exec"), "--pidfile", d.path("pid"),
		"--dns", "10.0.2.3", "--cgroup-parent", d.cgroup(), "--add-runtime", "bounded=" + d.path("runc"), "--default-runtime", "bounded",
	}
	d.startDaemon(tb, opt, args...)
	tb.Setenv("DOCKER_HOST", d.Host)
	return d
}

// Podman starts podman's service in the same way.
func Podman(tb testing.TB, opt Options) *Daemon {
	tb.Helper()
	installDaemon(tb, "podman", "podman", "runc", "netavark", "aardvark-dns", "iptables", "containernetworking-plugins")
	d := newDaemon(tb, "podman", opt)
	// No limit may be raised and no log driver of systemd is there.
	conf := fmt.Sprintf("[containers]\ndefault_ulimits = []\nlog_driver = \"k8s-file\"\n[engine]\nruntime = \"bounded\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n[engine.runtimes]\nbounded = [%q]\n", d.path("runc"))
	d.writeFile(tb, "containers.conf", conf, 0o644)
	service := []string{"podman", "--root", d.Data, "--runroot", d.path("exec"), "system", "service", "--time", "0", d.Host}
	if opt.Rootless {
		service = d.rootlessCommand(tb, service)
	}
	d.startDaemon(tb, opt, append([]string{"env", "CONTAINERS_CONF=" + d.path("containers.conf")}, service...)...)
	tb.Setenv("CONTAINER_HOST", d.Host)
	tb.Setenv("DOCKER_HOST", "unix://"+d.path("none.sock"))
	return d
}

// rootlessCommand returns the command line with which the user nobody runs podman's service. It
// has user IDs for containers and a network device, as on a machine that is set up for podman.
func (d *Daemon) rootlessCommand(tb testing.TB, service []string) []string {
	tb.Helper()
	d.writeFile(tb, "subuid", "nobody:200000:65536\n", 0o644)
	const prepare = `set -e
		mount --bind "$0/subuid" /etc/subuid
		mount --bind "$0/subuid" /etc/subgid
		mknod "$0/tun" c 10 200
		chmod 666 "$0/tun"
		mount --bind "$0/tun" /dev/net/tun
		mount --make-rshared /
		chmod 755 "$0"
		mkdir "$0/home" "$0/run"
		chown nobody "$0" "$0/home" "$0/run"
		cd /
		exec env HOME="$0/home" XDG_RUNTIME_DIR="$0/run" setpriv --reuid nobody --regid nogroup --clear-groups "$@"`
	return append([]string{"sh", "-c", prepare, d.dir}, service...)
}

// installDaemon installs the packages of a daemon. With -short it skips the test. Without root
// it skips the test too, but fails it if the variable CI is true.
func installDaemon(tb testing.TB, program string, packages ...string) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("short: runs a real container daemon")
	}
	ids, _ := os.ReadFile("/proc/self/uid_map") //nolint:errcheck // an empty map follows
	if os.Geteuid() != 0 || !bytes.Contains(ids, []byte("4294967295")) {
		needs.Missing(tb, "a container daemon of the test's own needs root, outside of user namespaces")
	}
	try := []string{"--net", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt"}
	if out, err := exec.CommandContext(tb.Context(), "unshare", try...).CombinedOutput(); err != nil {
		needs.Missing(tb, "a container daemon of the test's own needs the right to make namespaces and mounts: %s", bytes.TrimSpace(out))
	}
	have := debian.OnPath(program, "slirp4netns", "newuidmap") // podman without root needs the last one
	if err := debian.Ensure(tb.Context(), have, append(packages, "slirp4netns", "uidmap")...); err != nil {
		needs.Missing(tb, "installing %s: %v", program, err)
	}
}

// newDaemon makes the folder of a daemon.
func newDaemon(tb testing.TB, client string, opt Options) *Daemon {
	tb.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "dsbuild-"+client+"-") // short, and on a disk: it holds a socket and images
	if err != nil {
		tb.Fatal(err)
	}
	d := &Daemon{Client: client, Host: "unix://" + filepath.Join(dir, "sock"), Data: filepath.Join(dir, "data"), dir: dir}
	script := runcScript
	if opt.Deny != "" {
		script = strings.Replace(script, "DENIED = set()", fmt.Sprintf("DENIED = {%q}", opt.Deny), 1)
	}
	d.writeFile(tb, "runc", script, 0o755)
	return d
}

// writeFile makes a file in the daemon's folder that every user may read.
func (d *Daemon) writeFile(tb testing.TB, name, text string, mode os.FileMode) {
	tb.Helper()
	if err := os.WriteFile(d.path(name), []byte(text), mode); err != nil {
		tb.Fatal(err)
	}
}

func (d *Daemon) path(name string) string { return filepath.Join(d.dir, name) }

// cgroup is the control group of the daemon's containers.
func (d *Daemon) cgroup() string {
	if d.Client == "podman" {
		return "libpod_parent" // podman does not let the user choose it
	}
	return filepath.Base(d.dir)
}

// startDaemon runs the daemon below a guard, which lives until the test's process ends in any
// way, and waits until the daemon answers.
func (d *Daemon) startDaemon(tb testing.TB, opt Options, args ...string) {
	tb.Helper()
	if opt.DataMB > 0 {
		disk := fmt.Sprintf(`mkdir -p "$0" && mount -t tmpfs -o size=%dm tmpfs "$0" && exec "$@"`, opt.DataMB)
		args = append([]string{"sh", "-c", disk, d.Data}, args...)
	}
	guard := exec.Command("sh", append([]string{"-c", daemonScript, "daemon.sh", d.dir, d.cgroup()}, args...)...)
	guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	orders, err := guard.StdinPipe()
	if err == nil {
		err = guard.Start()
	}
	if err != nil {
		tb.Fatal(err)
	}
	d.orders = orders
	tb.Cleanup(func() {
		log, _ := os.ReadFile(d.path("log"))
		orders.Close()
		if err := errors.Join(guard.Wait(), os.RemoveAll(d.dir)); err != nil {
			tb.Errorf("ending %s: %v", d.Client, err)
		}
		if tb.Failed() {
			tb.Logf("%s:\n%s", d.Client, log[max(0, len(log)-4000):])
		}
	})
	ctx, cancel := context.WithTimeout(tb.Context(), upLimit)
	defer cancel()
	for {
		out, err := d.command(ctx, "version", "--format", "{{.Server.Version}}").CombinedOutput()
		if err == nil {
			tb.Logf("%s %s", d.Client, bytes.TrimSpace(out))
			return
		}
		select {
		case <-ctx.Done():
			tb.Fatalf("%s does not answer: %s", d.Client, out)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// command is the client with arguments.
func (d *Daemon) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, d.Client, args...)
	cmd.Env = append(os.Environ(), "DOCKER_HOST="+d.Host, "CONTAINER_HOST="+d.Host)
	return cmd
}

// Run runs the client to its end and returns its output.
func (d *Daemon) Run(tb testing.TB, args ...string) string {
	tb.Helper()
	out, err := d.command(tb.Context(), args...).CombinedOutput()
	if err != nil {
		tb.Fatalf("%s %s: %v: %s", d.Client, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// Kill ends the daemon with all its containers, as a crash does.
func (d *Daemon) Kill(tb testing.TB) {
	tb.Helper()
	if _, err := io.WriteString(d.orders, "kill\n"); err != nil {
		tb.Fatal(err)
	}
}

// innerPID returns the process of the daemon inside its namespaces.
func (d *Daemon) innerPID(tb testing.TB) string {
	tb.Helper()
	pid, err := os.ReadFile(d.path("inner"))
	if err != nil {
		tb.Fatal(err)
	}
	return strings.TrimSpace(string(pid))
}

// Listen opens a port in the daemon's network, from which the daemon pulls images.
func (d *Daemon) Listen(tb testing.TB, address string) net.Listener {
	tb.Helper()
	l, err := enginetest.ListenIn("/proc/"+d.innerPID(tb)+"/ns/net", address)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	return l
}

// LoadEngine loads the image of dsbuild's own engine into the daemon, under the name that the
// Dagger client asks for. The engine must be installed.
func (d *Daemon) LoadEngine(tb testing.TB) {
	tb.Helper()
	enginetest.Own(tb)
	file := d.path("engine.tar")
	defer os.Remove(file)
	module, err := exec.CommandContext(tb.Context(), "go", "list", "-m", "-f", "{{.Path}} {{.Dir}}").Output()
	if err != nil {
		tb.Fatal(err)
	}
	path, root, _ := strings.Cut(strings.TrimSpace(string(module)), " ")
	if strings.HasSuffix(path, "/ci") { // a test of the module ci
		root = filepath.Dir(root)
	}
	out, err := exec.CommandContext(tb.Context(), "go", "run", "-C", filepath.Join(root, "ci"), "./engine", "image", file).CombinedOutput()
	if err != nil {
		tb.Fatalf("making the engine's image: %v: %s", err, out)
	}
	d.Run(tb, "load", "-i", file)
}
