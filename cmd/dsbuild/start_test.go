//go:build linux

package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// atMenu is dsbuild start at a real terminal, in a folder with two programs.
type atMenu struct {
	*screen
	cmd *exec.Cmd
	dir string
}

func startMenu(t *testing.T) *atMenu {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m := &atMenu{screen: newScreen(t), cmd: exec.CommandContext(t.Context(), self), dir: t.TempDir()}
	for name, text := range map[string]string{
		"train.py": "import sys\nprint('given', sys.argv[1:])\n",
		"jax.py":   "class distributed:\n    initialize = lambda **said: None\nprocess_count = lambda: 1\n",
	} {
		if err := os.WriteFile(filepath.Join(m.dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m.cmd.Args, m.cmd.Dir = []string{"dsbuild", "start"}, m.dir
	m.cmd.Env = []string{"HOME=" + m.dir, "PATH=" + os.Getenv("PATH"), "PYTHONPATH=" + m.dir, "LC_ALL=C.UTF-8", "TERM=xterm"}
	m.cmd.Stdin, m.cmd.Stdout, m.cmd.Stderr = m.tty, m.tty, m.tty
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return m
}

// answers waits for each question and answers it: question, answer, question, …
func (m *atMenu) answers(t *testing.T, said ...string) {
	t.Helper()
	for i := 0; i < len(said); i += 2 {
		m.until(t, said[i])
		if _, err := io.WriteString(m.master, said[i+1]); err != nil {
			t.Fatal(err)
		}
	}
}

// ends waits for the end with this code, and returns all that was on the screen.
func (m *atMenu) ends(t *testing.T, code int) string {
	t.Helper()
	m.cmd.Wait() //nolint:errcheck // the code is looked at
	if got := m.cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("exit code %d, want %d; on the screen: %q", got, code, m)
	}
	m.tty.Close() // the last one: the terminal ends behind what was written
	<-m.done
	return strings.ReplaceAll(m.String(), "\r\n", "\n")
}

// Each branch of the menu, typed at a terminal, comes to its command.
func TestMenuAtTheTerminal(t *testing.T) {
	t.Parallel()
	const first, script, run = "Number: ", "Program and arguments: ", "Run it now? (y, n) [y]: "
	for name, c := range map[string]struct {
		answers []string
		command string
	}{
		"here":      {[]string{first, "1\n", script, "train.py --lr 5e-5 'a b'\n", "(0 to use the CPU) [", "2\n", "python on PATH: ", "\n"}, "launch torchrun --gpus 2 --submit -- train.py --lr 5e-5 'a b'"},
		"ssh":       {[]string{first, "2\n", "[inventory.yaml]: ", "gpu[01-02]\n", script, "train.py\n", "(0 to use the CPU)", "4\n", "Check the nodes first? (y, n) [y]: ", "\n"}, "check 'gpu[01-02]'\n  dsbuild launch torchrun -i 'gpu[01-02]' --gpus 4 --submit -- train.py"},
		"slurm":     {[]string{first, "3\n", "Number of nodes [1]: ", "2\n", "(0 to use the CPU) [8]: ", "\n", "the cluster's default: ", "gpu1\n", script, "train.py\n"}, "launch slurm --nodes 2 --gpus 8 --partition gpu1 --submit -- train.py"},
		"jax ssh":   {[]string{first, "4\n", "Where (here, ssh, slurm) [here]: ", "ssh\n", "[inventory.yaml]: ", "\n", script, "train.py\n", "(0 to use the CPU) [8]: ", "\n", "Check the nodes first? (y, n) [y]: ", "n\n"}, "launch jax -i inventory.yaml --gpus 8 --submit -- train.py"},
		"jax slurm": {[]string{first, "4\n", "[here]: ", "slurm\n", "Number of nodes [1]: ", "2\n", "(0 to use the CPU) [8]: ", "4\n", "default: ", "\n", "by all nodes [job]: ", "\n", script, "train.py\n"}, "launch jax --nodes 2 --gpus 4 -o job --submit -- train.py"},
		"elastic":   {[]string{first, "5\n", "Where (ssh, slurm) [ssh]: ", "slurm\n", "Minimum number of nodes [1]: ", "2\n", "Maximum number of nodes [2]: ", "1\n", "enter a number of 2 or more\r\nMaximum number of nodes [2]: ", "4\n", script, "train.py\n", "(0 to use the CPU) [8]: ", "\n", "default: ", "\n"}, "launch slurm --nodes 2:4 --gpus 8 --submit -- train.py"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := startMenu(t)
			m.answers(t, append(c.answers, run, "n\n")...)
			if said := m.ends(t, exitOK); !strings.Contains(said, "\nThe command:\n\n  dsbuild "+c.command+"\n\n") {
				t.Errorf("on the screen:\n%s", said)
			}
		})
	}
}

// What is answered with y runs, and the menu has its exit code.
func TestMenuRuns(t *testing.T) {
	t.Parallel()
	t.Run("job", func(t *testing.T) {
		t.Parallel()
		m := startMenu(t)
		m.answers(t, "Number: ", "4\n", "[here]: ", "\n", "arguments: ", "train.py 'a b'\n", "(0 to use the CPU) [", "0\n", "on PATH: ", "python3\n", "Run it now? (y, n) [y]: ", "\n")
		if said := m.ends(t, exitOK); !strings.Contains(said, "job train passed after ") {
			t.Errorf("on the screen:\n%s", said)
		}
		logs, err := filepath.Glob(filepath.Join(m.dir, ".local/state/dsbuild/jobs/*-train/main.log"))
		if err != nil || len(logs) != 1 {
			t.Fatalf("%v: %q", err, logs)
		}
		if text, err := os.ReadFile(logs[0]); err != nil || string(text) != "given ['a b']\n" {
			t.Errorf("%v: %q", err, text)
		}
	})
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		m := startMenu(t)
		m.answers(t, "Number: ", "6\n")
		if said := m.ends(t, exitOK); !strings.Contains(said, "ZeRO-2, ZeRO-3 or offloading") || strings.Contains(said, "Run it") {
			t.Errorf("on the screen:\n%s", said)
		}
	})
}

// A slip is asked about again; Ctrl-C and Ctrl-D end it, and say which is which.
func TestMenuEnds(t *testing.T) {
	t.Parallel()
	m := startMenu(t)
	m.answers(t, "Number: ", "nine\n", "enter a number from 1 to 6\r\nNumber: ", "1\n", "arguments: ", "--lr 3\n",
		"enter a Python file and its arguments, such as train.py --epochs 3\r\nProgram and arguments: ", "\x03")
	m.ends(t, exitInterrupted)
	m = startMenu(t)
	m.answers(t, "Number: ", "1\n", "arguments: ", "\x04")
	if said := m.ends(t, exitUsage); !strings.Contains(said, "dsbuild: Program and arguments: no answer\n") {
		t.Errorf("on the screen:\n%s", said)
	}
}
