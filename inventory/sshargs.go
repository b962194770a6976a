package inventory

import (
	"fmt"
	"strings"

	"github.com/dsbuild/dsbuild/inventory/ansible"
)

// sshArguments returns Ansible's connection arguments for ssh. ssh -G interprets them, so no value is
// read here.
func (v *varReader) sshArguments() []string {
	var all []string
	for _, name := range []string{"ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args"} {
		text := v.text(nil, name)
		if !text.set {
			continue
		}
		words, err := ansible.SplitWords(text.value)
		if err == nil {
			words, err = v.connecting(name, words)
		}
		if err != nil {
			v.unusable("", "%s: %v", name, err)
			continue
		}
		all = append(all, words...)
	}
	return all
}

// The letters of ssh's options: connection options, other options with a value, and options without a
// value.
const (
	sshConnecting = "FiJlop"
	sshWithValue  = "BbcDEeILmOPQRSWw"
	sshAlone      = "46AaCfGgKkMNnqsTtVvXxYy"
)

// connecting returns the connection arguments.
func (v *varReader) connecting(name string, words []string) ([]string, error) {
	var kept []string
	for i := 0; i < len(words); i++ {
		letters, isOption := strings.CutPrefix(words[i], "-")
		if !isOption || letters == "" {
			return nil, fmt.Errorf("%s is not an ssh option", quoted(words[i]))
		}
		letters = strings.TrimLeft(letters, sshAlone)
		if letters == "" {
			continue
		}
		letter, value := letters[:1], letters[1:]
		if !strings.Contains(sshConnecting+sshWithValue, letter) {
			return nil, fmt.Errorf("%s is not an ssh option", quoted(words[i]))
		}
		if value == "" {
			if i++; i == len(words) {
				return nil, fmt.Errorf("missing value for -%s", letter)
			}
			value = words[i]
		}
		switch {
		case !strings.Contains(sshConnecting, letter):
			v.note("ignoring option -%s in %s", letter, name)
		case letter == "o" && v.ignoresHostKeys(value):
		case letter == "J": // ssh accepts -o ProxyJump even with a ProxyCommand
			kept = append(kept, "-o", "ProxyJump="+value)
		default:
			kept = append(kept, "-"+letter, value)
		}
	}
	return kept, nil
}

// ignoresHostKeys reports whether an option disables host key checking. It adds a note that the option
// is ignored.
func (v *varReader) ignoresHostKeys(option string) bool {
	key, value, _ := strings.Cut(strings.ReplaceAll(strings.ToLower(option), " ", "="), "=")
	value = strings.Trim(value, `="`)
	switch {
	case key == "stricthostkeychecking" && value != "yes" && value != "ask" && value != "true":
	case key == "userknownhostsfile" && value == "/dev/null":
	default:
		return false
	}
	v.note("ignoring %s: host keys are always checked", option)
	return true
}
