package remote

import (
	"fmt"
	"os"
	"runtime"
	"slices"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// Client selects the SSH implementation.
type Client string

// The ways. Auto is the default, also for "". It means Native, except for nodes whose client
// configuration needs a feature that only OpenSSH has.
const (
	Auto    Client = "auto"
	Native  Client = "native"
	OpenSSH Client = "openssh"
)

// chooseWay selects the way to t and to its jump hosts.
func (d *SSH) chooseWay(t *Target, set settings) error {
	why := d.opensshAlone(*t, set)
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

// opensshAlone returns the first setting of t that only OpenSSH supports, or "" if there is none.
// Match exec does not count, because ssh -G has evaluated it.
func (d *SSH) opensshAlone(t Target, set settings) string {
	switch {
	case t.proxyCommand != "":
		return "ProxyCommand"
	case set.value("knownhostscommand") != "" && !t.givenKnown:
		return "KnownHostsCommand"
	case set.value("pkcs11provider") != "":
		return "PKCS11Provider"
	case set.says("hostbasedauthentication", "yes"):
		return "HostbasedAuthentication"
	case slices.ContainsFunc(t.IdentityFiles, securityKey):
		return "security key"
	case set.says("gssapiauthentication", "yes") && d.config.ticket():
		return "GSSAPIAuthentication with a Kerberos ticket"
	}
	return ""
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
