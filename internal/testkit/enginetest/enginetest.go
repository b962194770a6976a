//go:build linux

// Package enginetest gives tests Dagger engines: dsbuild's own, a second one that runs during a
// test, and servers that both can reach.
package enginetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsbuild/dsbuild/internal/testkit/built"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// Engine is a running engine, installed as dsbuild's own.
type Engine struct {
	Home    string // its directory
	Address string // unix://…
}

// CLI is the dagger program of the engine's installation.
func (e Engine) CLI() string { return filepath.Join(e.Home, "bin", "dagger") }

// Own returns the user's own engine, and starts it if it is installed. With -short it skips the
// test. Without an engine it skips the test too, but fails it if the variable CI is true.
func Own(tb testing.TB) Engine {
	tb.Helper()
	if testing.Short() {
		tb.Skip("short: runs a real engine")
	}
	built.Engine(tb)
	f := engine.NewFinder("", tb.Logf)
	f.Env = "" // other engines do not matter
	f.LookPath = func(string) (string, error) { return "", errors.New("not asked for") }
	if os.Geteuid() != 0 {
		needs.Missing(tb, "dsbuild's own engine needs root")
	}
	found, err := f.Find(tb.Context())
	if err != nil {
		needs.Missing(tb, "needs dsbuild's own engine (make engine): %v", err)
	}
	return Engine{Home: f.Home, Address: found.Address}
}

// Options are the properties of a second engine.
type Options struct {
	Env  []string // further variables for the engine, besides those of the test
	Site string   // the text of ${XDG_CONFIG_HOME}/dsbuild/engine.json; "" for none
}

// Second starts an engine beside the user's own and stops it when the test ends. It has the
// programs of that engine and a copy of its root, but a cache, a network, a socket and control
// groups of its own. Afterwards it removes them.
func Second(tb testing.TB, opt Options) Engine {
	tb.Helper()
	own := Own(tb)
	dir, err := os.MkdirTemp("", "dsbuild-engine-") // short: it holds a socket
	if err != nil {
		tb.Fatal(err)
	}
	e := Engine{Home: filepath.Join(dir, "dsbuild", "engine")}
	e.Address = "unix://" + filepath.Join(e.Home, "run", "engine.sock")
	env := append(append(os.Environ(), opt.Env...), "XDG_STATE_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	startGuard(tb, env, filepath.Join(e.Home, "bin", "enginectl"), dir)
	if err := e.copyEngine(own, dir, opt.Site); err != nil {
		tb.Fatalf("setting up a second engine: %v", err)
	}
	start := exec.Command(filepath.Join(e.Home, "bin", "enginectl"), "start")
	start.Env = env
	out, err := start.CombinedOutput()
	tb.Logf("second engine:\n%s", out)
	if err != nil {
		tb.Fatalf("starting a second engine: %v", err)
	}
	return e
}

// startGuard starts a process that ends the engine and removes its directory when the test has
// ended in any way: this process lives on if the test is killed.
func startGuard(tb testing.TB, env []string, control, dir string) {
	tb.Helper()
	said, err := os.CreateTemp("", "dsbuild-engine-*.log")
	if err != nil {
		tb.Fatal(err)
	}
	_ = os.Remove(said.Name())
	cmd := exec.Command("sh", "-c", `read -r end; status=0; if [ -x "$1" ]; then "$1" down || status=$?; fi; rm -rf "$2"; exit $status`, "sh", control, dir)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	living, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		tb.Fatalf("watching over a second engine: %v", err)
	}
	tb.Cleanup(func() {
		living.Close()
		err := cmd.Wait()
		_, _ = said.Seek(0, io.SeekStart)
		text, _ := io.ReadAll(said)
		said.Close()
		tb.Logf("second engine:\n%s", text)
		if err != nil {
			tb.Errorf("stopping the second engine: %v", err)
		}
	})
}

// copyEngine makes the directory of an engine from another's. The programs and the files of the
// root are hard links to the same files if the file system allows it. The engine writes into
// etc, so etc is copied.
func (e Engine) copyEngine(from Engine, config, site string) error {
	if err := os.MkdirAll(e.Home, 0o700); err != nil {
		return err
	}
	if site != "" {
		if err := os.WriteFile(filepath.Join(config, "dsbuild", "engine.json"), []byte(site), 0o644); err != nil {
			return err
		}
	}
	for _, part := range []string{"bin", "rootfs"} {
		to := filepath.Join(e.Home, part)
		if copyTree("-al", filepath.Join(from.Home, part), to) == nil {
			continue
		}
		if err := errors.Join(os.RemoveAll(to), copyTree("-a", filepath.Join(from.Home, part), to)); err != nil {
			return err
		}
	}
	etc := filepath.Join(e.Home, "rootfs", "etc")
	return errors.Join(os.RemoveAll(etc), copyTree("-a", filepath.Join(from.Home, "rootfs", "etc"), etc))
}

func copyTree(how, from, to string) error {
	if out, err := exec.Command("cp", how, from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("cp %s %s %s: %w: %s", how, from, to, err, out)
	}
	return nil
}

// Listen opens a port in the engine's own network. The engine and its containers get images from
// there: they cannot reach this host's loopback. The listener closes when the test ends.
func (e Engine) Listen(tb testing.TB, address string) net.Listener {
	tb.Helper()
	pid, err := e.pid()
	if err != nil {
		tb.Fatalf("finding the engine's network: %v", err)
	}
	l, err := ListenIn(fmt.Sprintf("/proc/%d/ns/net", pid), address)
	if err != nil {
		tb.Fatalf("listening on %s in the engine's network: %v", address, err)
	}
	tb.Cleanup(func() { l.Close() })
	return l
}

// Serve answers HTTP in the engine's own network until the test ends, and returns the address,
// which for the engine is "127.0.0.1:PORT".
func (e Engine) Serve(tb testing.TB, address string, handler http.Handler) string {
	tb.Helper()
	l := e.Listen(tb, address)
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go srv.Serve(l) //nolint:errcheck // ends with the test
	tb.Cleanup(func() { srv.Close() })
	return l.Addr().String()
}

// pid is the process of the engine, from the record that its supervisor keeps.
func (e Engine) pid() (int, error) {
	text, err := os.ReadFile(filepath.Join(e.Home, "run", "engine.json"))
	if err != nil {
		return 0, err
	}
	var record struct {
		Engine struct{ PID int }
	}
	if err := json.Unmarshal(text, &record); err != nil {
		return 0, err
	}
	if record.Engine.PID <= 0 {
		return 0, fmt.Errorf("its record names no process")
	}
	return record.Engine.PID, nil
}

// ListenIn opens a port in another network, which a file names. A socket stays in the network in
// which it was made. So only the thread that makes the socket enters that network, and is not
// used again.
func ListenIn(network, address string) (net.Listener, error) {
	type result struct {
		l   net.Listener
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		l, err := func() (net.Listener, error) {
			ns, err := os.Open(network)
			if err != nil {
				return nil, err
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return nil, fmt.Errorf("entering %s: %w", network, err)
			}
			return net.Listen("tcp", address)
		}()
		done <- result{l, err}
	}()
	r := <-done
	return r.l, r.err
}
