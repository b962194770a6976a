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
		{"variables in order", Command{Argv: []string{"env"}, Env: map[string]string{"B": "2", "A": "it's"}}, `env A='it'\''s' B='2' 'env'`},
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
	if err == nil || !strings.Contains(string(out), "setup line ended with status 1") || strings.Contains(string(out), "ran") {
		t.Errorf("a failing setup: %v %q", err, out)
	}
}
