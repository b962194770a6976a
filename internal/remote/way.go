package remote

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// Client selects the SSH implementation.
type Client string

// The SSH implementations. Auto is the default, also for "". It means Native, except for nodes whose client
// configuration needs a feature that only OpenSSH has.
const (
	Auto    Client = "auto"
	Native  Client = "native"
	OpenSSH Client = "openssh"
)

// chooseClient selects the SSH implementation for t and its jump hosts.
func (d *SSH) chooseClient(t *Target, set settings) error {
	why := d.needsOpenSSH(*t, set)
	t.hostCommand = set.value("knownhostscommand") != ""
	switch d.opt.Client {
	case OpenSSH:
		t.openSSH = true
	case Native:
		if t.proxyCommand != "" {
			// Without the ProxyCommand another node may answer, or none.
			err := fmt.Errorf("ProxyCommand for %s requires OpenSSH: %s", t.word(), t.proxyCommand)
			return fault.WithHint(err, "use --ssh auto or --ssh openssh; "+
				"for a node that is directly reachable, set ProxyCommand none before that line")
		}
		if _, told := d.ignored.LoadOrStore(why, true); why != "" && !told {
			d.opt.Note(fmt.Sprintf("--ssh native ignores a setting of %s: %s", t.word(), why))
		}
	default:
		t.openSSH = why != "" || slices.ContainsFunc(t.Jump, func(j Target) bool { return j.openSSH || j.hasMaster() })
	}
	if !t.openSSH {
		return nil
	}
	for i := range t.Jump {
		t.Jump[i].openSSH = true
	}
	if _, err := d.openSSH(); err != nil {
		if why != "" {
			err = fmt.Errorf("%s requires OpenSSH (%s): %w", t.word(), why, err)
		}
		return err
	}
	return nil
}

// needsOpenSSH returns the first setting of t that only OpenSSH supports, or "". Match exec is not
// one, because ssh -G has evaluated it.
func (d *SSH) needsOpenSSH(t Target, set settings) string {
	if slices.ContainsFunc(t.IdentityFiles, securityKey) {
		return "security key"
	}
	table := keywords()
	for _, key := range slices.Sorted(maps.Keys(set)) {
		k, known := table[key]
		switch {
		case !known:
			return key
		case k.openSSH == "" || k.unless != "" && set.says(key, k.unless):
		case key == "proxycommand" && t.proxyCommand == "": // the inventory has a jump host
		case key == "knownhostscommand" && t.givenKnown:
		case !strings.HasPrefix(key, "gssapi"):
			return k.openSSH
		case d.config.ticket():
			return k.openSSH + " with a Kerberos ticket"
		}
	}
	return t.allowed.missing()
}

// hasMaster reports whether the socket of an OpenSSH master of this user for t exists. The master
// may no longer be connected.
func (t Target) hasMaster() bool { return len(t.masters()) > 0 }

// masters returns the sockets of ControlPaths that exist and belong to this user. A socket of
// another user may be an attacker's.
func (t Target) masters() []string {
	if runtime.GOOS == "windows" {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(t.ControlPaths), func(path string) bool {
		info, err := os.Lstat(path)
		return err != nil || info.Mode().Type() != os.ModeSocket || !ours(info)
	})
}
