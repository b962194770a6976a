package remote

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
)

// addKey returns a local command that adds a node's keys to a known_hosts file.
func (c *hostKeyCheck) addKey() string {
	t, before := c.target, ""
	into := c.keepsKeys()
	if into == "" {
		into = "~/.ssh/known_hosts"
		before = fault.Set("known_hosts", into).String() + ", because the present setting keeps no keys, and run "
	} else {
		if folder := filepath.Dir(into); !exists(folder) {
			before = "mkdir -p " + Quote(folder) + " && "
		}
		into = Quote(into)
	}
	if t.proxyCommand != "" { // only ssh gets there, and it can add the key itself
		words := slices.Insert(sshTo(t), 1, "-o", "StrictHostKeyChecking=ask", "-o", "HashKnownHosts=no")
		if !t.givenKnown {
			words = slices.Insert(words, 1, "-o", "UserKnownHostsFile="+strings.Trim(into, "'"))
		}
		return before + shellWords(append(words, "true"))
	}
	scan := shellWords([]string{"ssh-keyscan", "-p", strconv.Itoa(t.Port), t.Address})
	if len(t.Jump) > 0 {
		scan = shellWords(append(sshTo(t.lastJump()), scan))
	}
	if t.HostKeyAlias != "" {
		scan += " | sed " + Quote("s|^[^ ]*|"+t.HostKeyAlias+"|") // the name in the lines of ssh-keyscan
	}
	return before + scan + " >> " + into
}

// keepsKeys returns the first known_hosts file that this user can append to, or "".
func (c *hostKeyCheck) keepsKeys() string {
	for _, file := range c.target.KnownHosts {
		systems := strings.HasPrefix(file, os.ExpandEnv(systemSSH))
		if canAppend(file) || !exists(file) && !systems {
			return file
		}
	}
	return ""
}

// canAppend reports whether this user can append to file.
func canAppend(file string) bool {
	info, err := os.Stat(file)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		f.Close()
	}
	return err == nil
}

// forSeveralHosts reports whether a line of known_hosts has more than one name, a pattern, or a CA key.
// Removing such a line would make other hosts unknown.
func forSeveralHosts(file string, line int) bool {
	text, err := os.ReadFile(file)
	lines := strings.Split(string(text), "\n")
	if err != nil || line < 1 || line > len(lines) {
		return false
	}
	words := strings.Fields(lines[line-1])
	return len(words) > 0 && (strings.HasPrefix(words[0], "@") || strings.ContainsAny(words[0], ",*?"))
}

// sshTo returns the words of an ssh that reaches t as dsbuild does.
func sshTo(t Target) []string {
	words := []string{"ssh"}
	for _, f := range t.IdentityFiles {
		words = append(words, "-i", f)
	}
	if t.givenKnown {
		words = append(words, "-o", "UserKnownHostsFile="+configWord(fileWord(t.KnownHosts[0])))
	}
	if len(t.Jump) > 0 {
		inner := strings.ReplaceAll(shellWords(sshTo(t.lastJump())), "%", "%%")
		words = append(words, "-o", "ProxyCommand="+strings.Replace(inner, "ssh ", "ssh -W '[%h]:%p' ", 1))
	}
	return append(append(words, t.SSHArgs...), "-p", strconv.Itoa(t.Port), fmt.Sprintf("%s@%s", t.User, t.word()))
}

// shellWords joins a program and its arguments for a shell.
func shellWords(words []string) string {
	return strings.Join(lists.Map(words, Word), " ")
}
