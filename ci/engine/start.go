package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// startLimit is how long an engine may take until it answers, without the time in which it removes
// the cache of one that was killed.
const startLimit = 90 * time.Second

// waitForAnswer waits until answered returns true.
func (l Layout) waitForAnswer(ctx context.Context, con *console, answered func() bool) error {
	stop := con.reportProgress("engine", func() string {
		if l.removesCache() {
			return "it was killed, and removes its cache before it answers"
		}
		return "waiting until it answers"
	})
	defer stop()
	for {
		err := waitUntil(ctx, startLimit, answered)
		if err == nil || ctx.Err() != nil || !l.removesCache() {
			return err
		}
	}
}

// removesCache reports whether the engine, at its start, removes the cache of one that was killed. That takes minutes, after
// which it writes further lines.
func (l Layout) removesCache() bool {
	return strings.Contains(tailOf(l.Log(), 1), "discarding dagql cache")
}

// groupConfig puts the containers' control groups below one control group of this engine, so that
// exactly these can be removed afterwards.
func groupConfig(cgroup string) string {
	return fmt.Sprintf("[worker.oci]\n  defaultCgroupParent = %q\n", "/"+cgroup)
}

// StartInstalled starts an installed engine. It does nothing if the engine answers.
func StartInstalled(ctx context.Context, l Layout, con *console) error {
	if socketAnswers(l.Socket()) {
		return nil
	}
	if !l.Installed() {
		return fault.WithHint(fmt.Errorf("no engine is installed in %s", l.Root), "install it: make engine")
	}
	if os.Geteuid() != 0 {
		return fault.WithHint(errors.New("the engine needs root: it makes mount, process and network namespaces"), "run it as root, or build without an engine: --builder host")
	}
	unlock, err := l.lock(ctx, con)
	if err != nil {
		return err
	}
	defer unlock()
	return startEngine(ctx, l, con)
}

// startEngine starts the engine; the caller holds the lock.
func startEngine(ctx context.Context, l Layout, con *console) error {
	ph, r := l.phase()
	switch ph {
	case phaseRunning:
		return nil
	case phaseSilent:
		con.printLine("engine", "%s runs but does not answer yet: waiting", r.Engine)
		err := l.waitForAnswer(ctx, con, func() bool { ph, _ = l.phase(); return ph != phaseSilent })
		if err != nil {
			return fault.WithHint(fmt.Errorf("the engine (%s) does not answer on %s: %w", r.Engine, l.Socket(), err),
				"see %s; stop it with: make engine-stop", l.Log())
		}
		if ph == phaseRunning {
			return nil
		}
	}
	l.removeLeftovers(r)
	if err := l.writeConfig(); err != nil {
		return fmt.Errorf("preparing the engine's root: %w", err)
	}
	weighCgroup(cgroupRoot, l.cgroup(), runtime.NumCPU())
	began := time.Now()
	con.printLine("engine", "starting Dagger %s", engineVersion)
	if proxy := loopbackProxy(os.Environ()); proxy != "" {
		con.printLine("engine", "%s is on this host's loopback, out of the engine's reach: give the proxy an address of this host", proxy)
	}
	gone, err := l.spawnSupervisor()
	if err != nil {
		return fmt.Errorf("starting the engine: %w", err)
	}
	died := false
	err = l.waitForAnswer(ctx, con, func() bool {
		select {
		case <-gone:
			died = true
		default:
		}
		return died || socketAnswers(l.Socket())
	})
	if died {
		err = errors.New("it ended at once")
	}
	if err != nil {
		return fault.WithHint(fmt.Errorf("the engine did not start: %w; its last lines:\n    %s", err, tailOf(l.Log(), tailLines)),
			"all of it: %s", l.Log())
	}
	con.printLine("engine", "started in %.1f s", time.Since(began).Seconds())
	return nil
}

// removeLeftovers removes the leftovers of a crash or a reboot: the socket, the record, and a
// network process without an engine.
func (l Layout) removeLeftovers(r record) {
	if r.Network.alive(l.Proc) {
		_ = syscall.Kill(r.Network.PID, syscall.SIGTERM)
	}
	_ = os.Remove(l.Socket())
	_ = os.Remove(l.recordFile())
	sweepCgroups(cgroupRoot, l.cgroup())
}

// writeConfig writes the files that the engine reads at its start, from the current settings of
// this host. The certificates go into the engine's bundle only. From its directory of extra
// certificates the engine would install them into every container, at each exec.
func (l Layout) writeConfig() error {
	for _, d := range []string{l.path("run"), l.Cache()} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	resolv, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return err
	}
	etc := filepath.Join(l.Rootfs(), "etc")
	_ = os.Remove(filepath.Join(etc, "resolv.conf"))
	if err := writeFile(filepath.Join(etc, "resolv.conf"), guestResolv(string(resolv)), 0o644); err != nil {
		return err
	}
	config, err := siteEngineConfig()
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(etc, "dagger", "engine.json"), config, 0o644); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(etc, "dagger", "engine.toml"), groupConfig(l.cgroup()), 0o644); err != nil {
		return err
	}
	return copyFile(findCertificates(os.Getenv), filepath.Join(etc, "ssl", "certs", "ca-certificates.crt"), 0o644)
}

// siteEngineConfig is the engine's configuration with the additions of the site.
func siteEngineConfig() (string, error) {
	path, err := siteFile()
	if err != nil {
		return "", err
	}
	site, err := readSite(path)
	if err != nil {
		return "", err
	}
	return engineConfig(site)
}

// guestResolv changes the host's resolv.conf for use behind slirp4netns: it cannot reach the
// host's loopback, but it can reach the relay at 10.0.2.3.
func guestResolv(host string) string {
	var b strings.Builder
	relayed := false
	for line := range strings.Lines(host) {
		f := strings.Fields(line)
		if len(f) > 1 && f[0] == "nameserver" && (strings.HasPrefix(f[1], "127.") || f[1] == "::1") {
			if !relayed {
				b.WriteString("nameserver 10.0.2.3\n")
			}
			relayed = true
			continue
		}
		b.WriteString(line)
	}
	return b.String()
}

// spawnSupervisor starts the supervisor independently of this program and its terminal. The
// channel is closed when it ends.
func (l Layout) spawnSupervisor() (<-chan struct{}, error) {
	_ = os.Rename(l.Log(), l.Log()+".1")
	log, err := os.Create(l.Log())
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(l.Bin("enginectl"), "supervise", l.Root)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.Env = engineEnv(os.Environ())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	gone := make(chan struct{})
	go func() { _ = cmd.Wait(); close(gone) }()
	return gone, nil
}

// engineEnv is the environment of the engine: it keeps the caller's proxy settings, and nothing
// else.
func engineEnv(host []string) []string {
	return append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "DO_NOT_TRACK=1", "DAGGER_NO_NAG=1"},
		proxyVariables(host)...)
}
