package remote

import (
	"os/exec"
	"strings"
	"testing"
)

// throughShell gives the line to a real shell, as sshd does, and returns the
// words that arrive at the program.
func throughShell(t *testing.T, line string) string {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", line)
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return string(out)
}

func FuzzQuoting(f *testing.F) {
	for _, s := range []string{"", "plain", "it's", "a b", "$HOME", "`id`", "$(id)", `back\slash`, "new\nline", "-n", "~", "*", "K=V", "#", "!", "é", "\xff\xfe", "';touch x;'", "\t", "{a,b}"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, word, value string) {
		line, err := CommandLine(Command{Argv: []string{"sh", "-c", `printf '%s|%s|' "$1" "$V"`, "sh", word}, Env: map[string]string{"V": value}})
		if strings.ContainsRune(word+value, 0) {
			if err == nil {
				t.Fatal("a NUL byte was accepted")
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := throughShell(t, line); got != word+"|"+value+"|" {
			t.Errorf("%q and %q arrived as %q", word, value, got)
		}
	})
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		name string
		cmd  Command
		want string
	}{
		{"plain words stay readable", Command{Argv: []string{"python3", "-m", "pip", "install", "/srv/a b.whl"}}, `'python3' -m pip install '/srv/a b.whl'`},
		{"variables in order", Command{Argv: []string{"env"}, Env: map[string]string{"B": "2", "A": "1 3"}}, `env A='1 3' B='2' 'env'`},
		{"a program like an assignment", Command{Argv: []string{"A=b"}}, `'A=b'`},
	} {
		if got, err := CommandLine(c.cmd); err != nil || got != c.want {
			t.Errorf("%s: %s, %v; want %s", c.name, got, err, c.want)
		}
	}
	for _, bad := range []Command{{}, {Argv: []string{"x"}, Env: map[string]string{"A;id": ""}}, {Argv: []string{"x"}, Env: map[string]string{"": ""}}} {
		if line, err := CommandLine(bad); err == nil {
			t.Errorf("%+v gave %s", bad, line)
		}
	}
}

func TestSetupLine(t *testing.T) {
	line, err := CommandLine(Command{Setup: "X=from-setup; export X # a comment", Argv: []string{"sh", "-c", "echo $X"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := throughShell(t, line); got != "from-setup\n" {
		t.Errorf("the program saw %q", got)
	}
	line, err = CommandLine(Command{Setup: "false", Argv: []string{"echo", "ran"}})
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("/bin/sh", "-c", line).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "setup line exited with status 1") || strings.Contains(string(out), "ran") {
		t.Errorf("a failing setup: %v %q", err, out)
	}
}

// loginShells returns the shells of this machine that a user of a node may have.
func loginShells(t *testing.T) []string {
	t.Helper()
	found := []string{}
	for _, name := range []string{"sh", "dash", "bash", "zsh", "ksh", "fish", "csh", "tcsh"} {
		if path, err := exec.LookPath(name); err == nil {
			found = append(found, path)
		}
	}
	if len(found) < 2 {
		t.Fatalf("only %q are here, want sh and bash at least", found)
	}
	return found
}

// Every login shell hands the same words to the program, once, and its status back.
func TestEveryLoginShell(t *testing.T) {
	words := []string{"plain", "it's", "a b", "$HOME", "`id`", `back\slash`, `\'`, "new\nline", "!", "!!", "a!b", "#", "é", "'\\''", "%s", "{a,b}", "", "~", "(set x)", "\t"}
	argv := append([]string{"sh", "-c", `printf '%s|' "$@" "$V"; exit 7`, "sh"}, words...)
	want := strings.Join(words, "|") + "|it's!|"
	for _, shell := range loginShells(t) {
		for _, setup := range []string{"", "V=\"it's\" # a comment", "V='it'"} {
			line, err := CommandLine(Command{Argv: argv, Env: map[string]string{"V": "it's!"}, Setup: setup})
			if err != nil {
				t.Fatal(err)
			}
			out, code := runIn(shell, line)
			if out != want || code != 7 {
				t.Errorf("%s, setup %q: %q with status %d, want %q with status 7", shell, setup, out, code, want)
			}
		}
	}
}

// A failing setup line stops the program in every login shell, and a setup line that works is seen.
func TestSetupInEveryLoginShell(t *testing.T) {
	for _, shell := range loginShells(t) {
		for setup, want := range map[string]string{"X=seen; export X": "seen\n", "false": ""} {
			line, err := CommandLine(Command{Setup: setup, Argv: []string{"sh", "-c", "echo $X"}})
			if err != nil {
				t.Fatal(err)
			}
			if out, code := runIn(shell, line); out != want || (code == 0) != (want != "") {
				t.Errorf("%s, setup %q: %q with status %d, want %q", shell, setup, out, code, want)
			}
		}
	}
}

// A start file that stops at unset variables and at errors does not stop a setup line.
func TestSetupSurvivesStrictLoginShells(t *testing.T) {
	for _, shell := range loginShells(t) {
		if strings.HasSuffix(shell, "csh") || strings.HasSuffix(shell, "fish") {
			continue // they have no such options
		}
		line, err := CommandLine(Command{Setup: "false; X=seen$UNSET; export X", Argv: []string{"sh", "-c", "echo $X"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, start := range []string{"set -u", "set -e", "set -eu"} {
			if out, code := runIn(shell, start+"\n"+line); out != "seen\n" || code != 0 {
				t.Errorf("%s, after %s: %q with status %d, want \"seen\" with status 0", shell, start, out, code)
			}
		}
	}
}

// runIn gives a line to a login shell as sshd does.
func runIn(shell, line string) (out string, code int) {
	cmd := exec.Command(shell, "-c", line)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "SHELL=" + shell, "HOME=/nonexistent"}
	text, _ := cmd.Output() //nolint:errcheck // the status is looked at
	return string(text), cmd.ProcessState.ExitCode()
}
