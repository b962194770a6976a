//go:build full && linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/built"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/wheel"
)

// kill -9 of dsbuild at 30 moments.
func TestFullEnvKilledController(t *testing.T) { killController(t, 30) }

// roomForTorch is the disk that four environments with torch need here: on four machines it would be a
// quarter of it on each.
const roomForTorch = 45 << 30

// Four real nodes that have Python alone get torch, DeepSpeed with its ops and transformers by one
// command, all equal. Four plain uv at once, from the same files on this disk, are the yardstick. Where
// the disk has no room for torch, or no wheel was built, the environment has none, and the result
// says so.
func TestFullEnvBareNodes(t *testing.T) {
	const count = 4
	fleet := nodestest.Up(t, nodes.Options{Count: count, Env: nodes.NoPython})
	interpreter, err := python.Find(t.Context(), "3.11")
	if err != nil {
		t.Fatal(err)
	}
	uv, err := python.GetUV(t.Context(), interpreter, func(line string) { t.Log(line) })
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	file := wheelWithRoom(t, home)
	torch := writeFullEnv(t, home, file, "3.0.2")
	run := func(args ...string) (string, time.Duration) {
		t.Helper()
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Args, cmd.Dir, cmd.Stderr = append([]string{"dsbuild"}, args...), home, t.Output()
		cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CACHE_HOME="+filepath.Join(home, "cache"), "PATH="+filepath.Dir(uv.Program())+":"+os.Getenv("PATH"))
		begin := time.Now()
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
		return string(out), time.Since(begin)
	}
	collect := func() {
		t.Helper()
		run("env", "lock", "--for", fleet.Inventory)
		run("env", "deploy", fleet.Inventory, "--dry-run") // brings the files to this machine
	}
	deploy := func() (report.Report, time.Duration) {
		t.Helper()
		// A relay saves the controller's network; here all of its work would be added to one machine's.
		out, took := run("env", "deploy", fleet.Inventory, "--relay", "off", "--json")
		var r report.Report
		if err := json.Unmarshal([]byte(out), &r); err != nil || r.Summary.OK != count || !r.Consistent || !r.Nodes[0].Changed {
			t.Fatalf("%v\n%s", err, out)
		}
		return r, took
	}
	collect()
	installed, imported := plainInstalls(t, uv.Program(), interpreter, home, count, torch != "")
	first, whole := deploy()
	t.Logf("%d nodes: %v, plain uv %v, and %v with the first import", count, whole, installed, imported)
	writeFullEnv(t, home, file, "3.1.0")
	collect()
	second, one := deploy()
	run("env", "verify", fleet.Inventory)
	if second.Nodes[0].Sent*20 > first.Nodes[0].Sent {
		t.Errorf("one changed package: %d of %d bytes", second.Nodes[0].Sent, first.Nodes[0].Sent)
	}
	// Times are results, not limits. Four machines have four disks. This one's disk gets every wheel and its files four
	// times, and this machine also encrypts for the nodes. A changed package takes longer than a twentieth: each node
	// loads every op again, which imports torch.
	for i := range first.Nodes {
		t.Logf("steps of %s: %v, then %v", first.Nodes[i].Name, first.Nodes[i].Seconds, second.Nodes[i].Seconds)
	}
	with := "without torch, for which the disk has no room or no wheel was built"
	if torch != "" {
		with = "with torch " + torch + " and DeepSpeed's ops"
	}
	t.Logf("result: four bare nodes %s: %.1f s, plain uv four times at once from the same files %.1f s, with the first import of torch and DeepSpeed %.1f s; one changed package %d of %d bytes, %.1f s",
		with, whole.Seconds(), installed.Seconds(), imported.Seconds(), second.Nodes[0].Sent, first.Nodes[0].Sent, one.Seconds())
}

// wheelWithRoom is the wheel that was built, "" if there is none or no room for torch.
func wheelWithRoom(t *testing.T, dir string) string {
	t.Helper()
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		t.Fatal(err)
	}
	if int64(disk.Bavail)*disk.Bsize < roomForTorch {
		return ""
	}
	return built.Wheel(t)
}

// writeFullEnv writes environment.yaml with the requirements of DeepSpeed and transformers, and with
// a wheel of DeepSpeed and its torch, if there is one. It returns the version of torch.
func writeFullEnv(t *testing.T, dir, file, hjson string) (torch string) {
	t.Helper()
	needs, err := dockerfiles.RuntimeRequirements()
	if err != nil {
		t.Fatal(err)
	}
	text := "name: train\npython: 3.11\n"
	if file != "" {
		loaded, err := wheel.LoadAll(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		if torch = loaded[0].Manifest.Torch; loaded[0].Manifest.TorchABI != nil { // then it is the oldest one
			torch = nodes.DefaultTorch
		}
		text += "torch: " + torch + "\ndeepspeed: " + file + "\n"
	}
	text += "requirements:\n  - transformers==4.57.1\n  - hjson==" + hjson + "\n"
	for _, r := range needs {
		if !strings.Contains(r, ";") && !strings.HasPrefix(r, "hjson") {
			text += fmt.Sprintf("  - %q\n", r)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "environment.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return torch
}

// plainInstalls lets uv install the files of the lock several times at once, each into an environment of
// its own with a cache of its own, as so many nodes do that have the files on their disks. Then each imports
// DeepSpeed, if that is among them: the first import compiles the modules of torch. It returns both times, from the begin on.
func plainInstalls(t *testing.T, uv, interpreter, home string, count int, imports bool) (installed, imported time.Duration) {
	t.Helper()
	l, err := environment.ReadLock(filepath.Join(home, "environment.lock"))
	if err != nil {
		t.Fatal(err)
	}
	asked, folder := "", t.TempDir()
	defer os.RemoveAll(folder)
	for _, f := range l.Sets[0].Files {
		file := filepath.Join(home, "cache", "dsbuild", "env", f.SHA256, f.File)
		if f.Path != "" {
			file = filepath.Join(l.Dir, filepath.FromSlash(f.Path))
		}
		if err := os.Symlink(file, filepath.Join(folder, f.File)); err != nil {
			t.Fatal(err)
		}
		asked += fmt.Sprintf("%s==%s --hash=sha256:%s\n", f.Name, f.Version, f.SHA256)
	}
	requirements := filepath.Join(folder, "requirements.txt")
	if err := os.WriteFile(requirements, []byte(asked), 0o600); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	onEach := func(commands func(dir, python string) [][]string) time.Duration {
		var all errgroup.Group
		for i := range count {
			dir := filepath.Join(folder, fmt.Sprint("node", i))
			all.Go(func() error {
				for _, argv := range commands(dir, filepath.Join(dir, "venv", "bin", "python")) {
					cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
					cmd.Env = append(os.Environ(), "UV_CACHE_DIR="+filepath.Join(dir, "cache"), "UV_NO_CONFIG=1", "UV_OFFLINE=1")
					if out, err := cmd.CombinedOutput(); err != nil {
						return fmt.Errorf("%q: %w: %s", argv, err, out)
					}
				}
				return nil
			})
		}
		if err := all.Wait(); err != nil {
			t.Fatal(err)
		}
		return time.Since(begin)
	}
	installed = onEach(func(dir, python string) [][]string {
		return [][]string{
			{uv, "venv", "--python", interpreter, filepath.Join(dir, "venv")},
			{uv, "pip", "install", "--no-index", "--no-deps", "--require-hashes", "--python", python, "-r", requirements, "--find-links", folder},
		}
	})
	if !imports {
		return installed, installed
	}
	return installed, onEach(func(_, python string) [][]string { return [][]string{{python, "-c", "import torch, deepspeed"}} })
}
