package inventory

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/inventory/ansible"
)

// sshOption is an option of ssh: -o Name=Value, or a letter that is short for one.
type sshOption struct{ name, value string }

// The letters of ssh's options: those with a value, and those without.
const (
	sshWithValue = "BbcDEeFIiJLlmOopQRSWw"
	sshAlone     = "46AaCfGgKkMNnqsTtVvXxYy"
)

// letterOptions maps letters to the options of ssh_config for which they are short.
func letterOptions() map[byte]string {
	return map[byte]string{'i': "identityfile", 'J': "proxyjump", 'l': "user", 'p': "port", 'F': "-f", 'W': "-w"}
}

// harmless returns the options that do not decide how ssh reaches a node, or that dsbuild sets in
// its own way.
func harmless() []string {
	return []string{
		"addkeystoagent", "addressfamily", "batchmode", "compression", "connectionattempts", "connecttimeout",
		"controlmaster", "controlpath", "controlpersist", "forwardagent", "forwardx11", "gssapiauthentication",
		"identitiesonly", "kbdinteractiveauthentication", "loglevel", "numberofpasswordprompts", "passwordauthentication",
		"preferredauthentications", "pubkeyauthentication", "requesttty", "serveralivecountmax", "serveraliveinterval",
		"tcpkeepalive", "visualhostkey",
	}
}

// sshOptions parses arguments of ssh. rest holds the words that are not options.
func sshOptions(words []string) (options []sshOption, rest []string, err error) {
	for i := 0; i < len(words); i++ {
		w := words[i]
		if len(w) < 2 || w[0] != '-' {
			// Not an option: the host, or after it the command to run there.
			rest = append(rest, w)
			continue
		}
		for at := 1; at < len(w); at++ {
			letter := w[at]
			if strings.IndexByte(sshAlone, letter) >= 0 {
				continue
			}
			if strings.IndexByte(sshWithValue, letter) < 0 {
				return nil, nil, fmt.Errorf("%s is not an option of ssh", quoted(w))
			}
			value := w[at+1:]
			if value == "" {
				if i++; i == len(words) {
					return nil, nil, fmt.Errorf("-%c has no value", letter)
				}
				value = words[i]
			}
			options = append(options, option(letter, value))
			break
		}
	}
	return options, rest, nil
}

// option returns the option for a letter with its value.
func option(letter byte, value string) sshOption {
	if letter == 'o' {
		name, value := value, ""
		if i := strings.IndexAny(name, "= \t"); i >= 0 {
			name, value = name[:i], strings.TrimLeft(name[i:], "= \t")
		}
		return sshOption{strings.ToLower(name), strings.Trim(value, `"`)}
	}
	if name, ok := letterOptions()[letter]; ok {
		return sshOption{name, value}
	}
	return sshOption{"-" + string(letter), value}
}

// sshArguments reads the arguments that Ansible gives to ssh. As with ssh, the first value of an
// option counts.
func (v *varReader) sshArguments(s *settings) {
	for _, name := range []string{"ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args"} {
		text := v.text(nil, name)
		if !text.set {
			continue
		}
		at := v.vars[name].At
		words, err := ansible.SplitWords(text.value)
		var options []sshOption
		var rest []string
		if err == nil {
			options, rest, err = sshOptions(words)
		}
		if err == nil && len(rest) > 0 {
			err = fmt.Errorf("%s is not an option of ssh", quoted(rest[0]))
		}
		if err != nil {
			v.fault(at, "", "%s: %v", name, err)
			continue
		}
		for _, o := range options {
			v.sshOption(s, name, at, o)
		}
	}
}

// sshOption applies one option.
func (v *varReader) sshOption(s *settings, name string, at Position, o sshOption) {
	refuse := func(err error) {
		v.fault(at, "set it in ~/.ssh/config, or as dsbuild_proxy_jump", "%s: %v", name, err)
	}
	switch o.name {
	case "proxyjump", "proxycommand":
		jump, err := o.value, error(nil)
		if o.name == "proxycommand" {
			jump, err = jumpOf(o.value)
		}
		if strings.EqualFold(jump, "none") {
			jump = ""
		}
		if err == nil && jump != "" {
			err = checkJump(jump)
		}
		if err != nil {
			refuse(err)
		} else if !s.proxyJump.set {
			s.proxyJump = some(jump)
		}
	case "identityfile":
		file, err := v.absolute(o.value)
		if err != nil {
			refuse(err)
		} else if !s.identityFile.set {
			s.identityFile = some(file)
		}
	case "user":
		if err := checkUser(o.value); err != nil {
			refuse(err)
		} else if !s.user.set {
			s.user = some(o.value)
		}
	case "port":
		if n, err := portNumber(o.value); err != nil {
			refuse(err)
		} else if !s.port.set {
			s.port = some(n)
		}
	case "-f":
		refuse(errors.New("a separate configuration (-F), which dsbuild does not read"))
	case "stricthostkeychecking":
		if !slices.Contains([]string{"yes", "ask", "true"}, strings.ToLower(o.value)) {
			v.remark("dsbuild ignores StrictHostKeyChecking=%s: it always checks host keys", o.value)
		}
	case "userknownhostsfile":
		v.userKnownHosts(o.value)
	default:
		if !slices.Contains(harmless(), o.name) {
			v.remark("dsbuild ignores the option %s of %s", quoted(o.name), name)
		}
	}
}

func (v *varReader) userKnownHosts(file string) {
	path, err := v.absolute(file)
	switch {
	case file == "/dev/null":
		v.remark("dsbuild ignores UserKnownHostsFile=/dev/null: it always checks host keys")
	case err != nil || strings.ContainsAny(file, " %"):
		v.remark("dsbuild ignores UserKnownHostsFile=%s: name one file", file)
	case v.knownHosts == "":
		v.knownHosts = path
	}
}

// jumpOf returns the jump host of a ProxyCommand that is equivalent to one: ssh -W %h:%p
// [options] [user@]host.
func jumpOf(command string) (string, error) {
	other := fmt.Errorf("the ProxyCommand %s is not a jump host (ssh -W %%h:%%p HOST)", quoted(command))
	words, err := ansible.SplitWords(command)
	if err != nil || len(words) == 0 || path.Base(words[0]) != "ssh" {
		if strings.EqualFold(command, "none") {
			return "none", nil
		}
		return "", other
	}
	options, rest, err := sshOptions(words[1:])
	if err != nil || len(rest) != 1 {
		return "", other
	}
	user, port, forwards := "", "", false
	for _, o := range options {
		switch o.name {
		case "-w":
			forwards = o.value == "%h:%p" || o.value == "[%h]:%p"
		case "user":
			user = o.value + "@"
		case "port":
			port = ":" + o.value
		case "identityfile", "proxyjump", "proxycommand", "-f":
			return "", fmt.Errorf("the ProxyCommand has options of the jump host that dsbuild does not support: %s", o.name)
		}
	}
	if !forwards {
		return "", other
	}
	host := rest[0]
	if login, address, found := strings.Cut(host, "@"); found {
		user, host = login+"@", address
	}
	if port != "" && strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		host = "[" + host + "]"
	}
	return user + host + port, nil
}
