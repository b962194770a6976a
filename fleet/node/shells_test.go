package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/debian"
)

// bareRoot is a folder to change root to, with a shell as /bin/sh and what it
// needs to run, and nothing else: no Python, no core utilities, no /proc.
func bareRoot(t *testing.T, shell string) string {
	t.Helper()
	needRoot(t)
	root := t.TempDir()
	put := func(file, to string) {
		data, err := os.ReadFile(file)
		to = filepath.Join(root, to)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, data, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	put(shell, "/bin/sh")
	libraries, _ := exec.Command("ldd", shell).Output() // a static one has none
	for _, m := range regexp.MustCompile(`(/\S+) \(0x`).FindAllStringSubmatch(string(libraries), -1) {
		put(m[1], m[1])
	}
	write(t, filepath.Join(root, "dev", "null"), "") // a file does
	return root
}

// shells are the POSIX shells that nodes have as /bin/sh.
func shells(t *testing.T) map[string]string {
	t.Helper()
	busybox := "/bin/busybox"
	have := func() bool { _, err := os.Stat(busybox); return err == nil }
	if os.Getuid() == 0 {
		if err := debian.Ensure(t.Context(), have, "busybox-static"); err != nil && os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
	}
	found := map[string]string{"dash": "/bin/dash", "bash": "/bin/bash"}
	if have() {
		found["busybox"] = busybox
	}
	return found
}

func TestAnyPOSIXShellAnswers(t *testing.T) {
	t.Parallel()
	for name, shell := range shells(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := bareRoot(t, shell)
			in := local{within: []string{"chroot", root}, env: []string{"PATH=/bin"}}
			f := probe(t, in, node.ProbeOptions{})
			if !slices.Equal(f.Missing, []string{"python", "glibc", "cpu"}) || f.Container != "" || len(f.GPUs) > 0 {
				t.Errorf("a bare root: %+v", f)
			}
			// What the kernel shows, for a driver whose nvidia-smi is missing.
			write(t, filepath.Join(root, "proc/cpuinfo"), "processor\t: 0\nmodel name\t: X \\n \"\nflags\t\t: fpu cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3\n\nflags\t\t: none\n")
			write(t, filepath.Join(root, "bin/uname"), "#!/bin/sh\necho x86_64\n")
			write(t, filepath.Join(root, "proc/driver/nvidia/version"), "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (x)\nGCC version:  gcc 12\n")
			write(t, filepath.Join(root, "proc/driver/nvidia/gpus/0000:01:00.0/information"), "Model: \t\t NVIDIA RTX 4090\nIRQ:   \t\t 1\n")
			write(t, filepath.Join(root, "proc/driver/nvidia/gpus/0000:02:00.0/information"), "Model: \t\t NVIDIA T4 \\ *\n")
			write(t, filepath.Join(root, "bin/python3"), "#!/bin/sh\nexit 0\n")
			for _, program := range []string{"uname", "python3"} {
				if err := os.Chmod(filepath.Join(root, "bin", program), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			f = probe(t, in, node.ProbeOptions{})
			want := []node.GPU{{Name: "NVIDIA RTX 4090"}, {Name: `NVIDIA T4 \ *`}}
			if !slices.Equal(f.GPUs, want) || f.Driver != "580.65.06" || f.CPU != "x86-64-v2" {
				t.Errorf("GPUs %+v, driver %q, CPU %q", f.GPUs, f.Driver, f.CPU)
			}
			if !slices.Equal(f.Missing, []string{"python (/bin/python3: no output)", "glibc", "compute capability"}) {
				t.Errorf("missing: %q", f.Missing)
			}
			// What calls itself a Python may have any name, and say anything.
			write(t, filepath.Join(root, "bin/all good here; run x"), "#!/bin/sh\necho \"$0\" >&2\nexit 1\n")
			if err := os.Chmod(filepath.Join(root, "bin/all good here; run x"), 0o755); err != nil {
				t.Fatal(err)
			}
			if f = probe(t, in, node.ProbeOptions{Python: "all good here; run x"}); len(f.Missing) == 0 || !strings.HasPrefix(f.Missing[0], `python ("/bin/all good here; run x": `) {
				t.Errorf("missing: %q; want the program's name in quotes", f.Missing)
			}
			if name == "busybox" {
				return // it has an uname of its own
			}
			// Every aarch64 CPU has the one level.
			write(t, filepath.Join(root, "proc/cpuinfo"), "processor\t: 0\nFeatures\t: fp asimd\n")
			write(t, filepath.Join(root, "bin/uname"), "#!/bin/sh\necho aarch64\n")
			if f = probe(t, in, node.ProbeOptions{Python: "/nowhere"}); f.CPU != "armv8-a" || !slices.Equal(f.Missing, []string{"python", "glibc", "compute capability"}) {
				t.Errorf("aarch64: CPU %q, want armv8-a; missing %q, want python, glibc and compute capability", f.CPU, f.Missing)
			}
		})
	}
}

// A startup file that starts something else than the program is told as such. What it starts executes nothing of the program.
func TestAnotherProgramIsStarted(t *testing.T) {
	t.Parallel()
	const ofSFTP, ofLogin = "account is restricted to SFTP", "a startup file of the login shell"
	const ofShell = ofLogin + " starts another shell"
	for starts, want := range map[string]string{
		"exec dash": ofShell, "exec bash": ofShell, "exec zsh": ofShell, "exec tcsh": ofShell, "exec fish": ofShell, "exec ksh": ofShell,
		"exec sh -i": ofShell, "exec bash --norc -i": ofShell, "exec tcsh -i": ofShell, "exec python3": ofShell, "exec python3 -i": ofShell,
		"bash": ofLogin, "dash": ofLogin, // ends, and what follows reads the rest
		"cat >/dev/null; echo This service allows sftp connections only.; exit 1": ofSFTP,
		"exec /usr/lib/openssh/sftp-server":                                       ofSFTP,
	} {
		words := strings.Fields(starts)
		if _, err := exec.LookPath(words[min(1, len(words)-1)]); words[0] == "exec" && err != nil {
			continue
		}
		home := t.TempDir()
		write(t, filepath.Join(home, ".bashrc"), starts+"\n")
		// As sshd starts bash, which then reads this file.
		in := local{within: []string{
			"setsid", "-w", "env", "-C", home, "-u", "SHLVL", "SSH_CLIENT=127.0.0.1 1 22", "HOME=" + home, "bash", "-c", `exec "$@"`, "bash",
		}}
		_, err := node.Probe(t.Context(), in, node.ProbeOptions{Python: "python3"})
		if err == nil || !strings.HasPrefix(err.Error(), want) || fault.Hint(err) == "" {
			t.Errorf("%s: %v; hint: %s", starts, err, fault.Hint(err))
		}
		script := node.Script{Python: "python3", Program: programOf("emit({})\n"), Request: map[string]any{"a": "`touch made`", "b": "\n$(touch made)"}}
		err = script.Run(t.Context(), in, func(json.RawMessage) error { return nil })
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: a script: %v", starts, err)
		}
		if made, err := filepath.Glob(filepath.Join(home, "[^.]*")); err != nil || len(made) > 0 {
			t.Errorf("%s: it wrote %q, %v; want no file", starts, made, err)
		}
	}
}

// A startup file that keeps commands from running, from their input or from being heard is named, with a test.
func TestStartupFiles(t *testing.T) {
	t.Parallel()
	late := errors.New("timed out after 2m0s")
	for does, want := range map[string][2]string{
		"exit 0":                     {"no output from the node: a startup file of the login shell", "ssh NODE echo ok"},
		"exit 3":                     {"no output from the node: a startup file of the login shell", "ssh NODE echo ok"},
		"cat >/dev/null":             {"a startup file of the login shell (~/.bashrc, ~/.zshenv, ~/.ssh/rc), or setup:, read dsbuild's program", "echo ok | ssh NODE cat"},
		"exec >/dev/null":            {"no output from the node: a startup file of the login shell", "ssh NODE echo ok"},
		"read -r line":               {"a startup file of the login shell (~/.bashrc, ~/.zshenv, ~/.ssh/rc), or setup:, read dsbuild's program", "echo ok | ssh NODE cat"},
		"yes | head -c 20000000":     {"too much output from the node, before dsbuild's program began", "ssh NODE true | wc -c"},
		"yes | head -c 20000000 >&2": {"too much output from the node, before dsbuild's program began", "ssh NODE true | wc -c"},
		"exec sleep 60":              {"timed out after 2m0s without any output from the node", "or the file system of its Python"},
		"yes | head -c 3000000":      {},
		"set -eu":                    {},
	} {
		ctx, cancel := t.Context(), context.CancelFunc(func() {})
		if strings.Contains(does, "sleep") {
			ctx, cancel = context.WithTimeoutCause(ctx, 200*time.Millisecond, late)
		}
		in := local{within: []string{"sh", "-c", does + `; exec "$@"`, "sh"}}
		_, err := node.Probe(ctx, in, node.ProbeOptions{Python: "python3"})
		cancel()
		switch {
		case want[0] == "" && err != nil:
			t.Errorf("%s: %v, want the facts", does, err)
		case want[0] != "" && (err == nil || !strings.HasPrefix(err.Error(), want[0]) || !strings.HasSuffix(fault.Hint(err), want[1])):
			t.Errorf("%s: %v; hint: %s\nwant %s, and a hint that ends with %s", does, err, fault.Hint(err), want[0], want[1])
		}
	}
}

// A file in site-packages that ends each Python is no lack of a Python.
func TestPathFileThatExits(t *testing.T) {
	t.Parallel()
	python, site := venv(t)
	for _, text := range []string{"import os; os._exit(0)", "import os; os._exit(3)", "import sys; sys.exit(3)"} {
		write(t, filepath.Join(site, "ends.pth"), text+"\n")
		f := probe(t, local{}, node.ProbeOptions{Python: python})
		if !strings.HasPrefix(f.NoPython(), "no usable Python ("+python+": ") || !strings.Contains(f.PythonHint("set python:"), ".pth") {
			t.Errorf("%s: %s; hint: %s", text, f.NoPython(), f.PythonHint("set python:"))
		}
	}
}

func TestContainersByTheirMarks(t *testing.T) {
	t.Parallel()
	for name, files := range map[string]map[string]string{
		"enroot":         {".lock": "", "etc/rc": ""},
		"podman":         {"run/.containerenv": ""},
		"docker":         {"proc/self/cgroup": "13:pids:/x\n12:memory:/docker/0123\n"},
		"kubernetes":     {"proc/self/cgroup": "0::/kubepods.slice/kubepods-pod1.slice\n"},
		"lxc":            {"proc/self/cgroup": "0::/lxc.payload.c1/init.scope\n"},
		"systemd-nspawn": {"run/systemd/container": "systemd-nspawn"},
		"":               {"proc/self/cgroup": "0::/user.slice/user-0.slice/session-1.scope\n", "etc/rc": ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := bareRoot(t, "/bin/dash")
			for file, text := range files {
				write(t, filepath.Join(root, file), text)
			}
			if got := probe(t, local{within: []string{"chroot", root}, env: []string{"PATH=/bin"}}, node.ProbeOptions{}).Container; got != name {
				t.Errorf("%q", got)
			}
		})
	}
	root := bareRoot(t, "/bin/dash")
	env := []string{"PATH=/bin", "container=lxc\x1b[31m"}
	if got := probe(t, local{within: []string{"chroot", root}, env: env}, node.ProbeOptions{}).Container; !strings.HasPrefix(got, "lxc") || strings.Contains(got, "\x1b") {
		t.Errorf("by the variable: %q", got)
	}
}
