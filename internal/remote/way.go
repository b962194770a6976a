package remote

import (
	"fmt"
	"os"
	"runtime"
	"slices"

	"github.com/dsbuild/dsbuild/internal/hint"
)

// Way says who speaks SSH to the nodes.
type Way string

// The ways. Auto, which "" stands for, is Native, but for nodes for which the client
// configuration asks for what OpenSSH alone can do.
const (
	Auto    Way = "auto"
	Native  Way = "native"
	OpenSSH Way = "openssh"
)

// chooseWay decides by which way t is reached, with its jump hosts.
func (d *SSH) chooseWay(t *Target, set settings) error {
	why := d.opensshAlone(*t, set)
	t.hostCommand = set.value("knownhostscommand") != ""
	switch d.opt.Way {
	case OpenSSH:
		t.openSSH = true
	case Native:
		if t.proxyCommand != "" {
			// Without it the node that answers may be another one, or none.
			return hint.With(fmt.Errorf("the ssh configuration has a ProxyCommand for %s (%s), which OpenSSH alone runs", t.word(), t.proxyCommand),
				"use --ssh auto or --ssh openssh; if the node can be reached directly, put ProxyCommand none for it before that line")
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
			err = fmt.Errorf("%s needs OpenSSH (%s): %w", t.word(), why, err)
		}
		return err
	}
	return nil
}

// opensshAlone is what the configuration asks for t that dsbuild cannot do itself; "" is
// nothing. What Match exec decides is no part of that: ssh -G has asked it.
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
		return "a security key"
	case set.says("gssapiauthentication", "yes") && d.config.ticket():
		return "GSSAPIAuthentication, and Kerberos has a ticket"
	}
	return ""
}

// hasMaster reports whether an OpenSSH of this user may have a connection to t: its
// socket is there.
func (t Target) hasMaster() bool { return len(t.masters()) > 0 }

// masters are the sockets of ControlPaths that are there. One of another user's could be
// anybody's.
func (t Target) masters() []string {
	if runtime.GOOS == "windows" {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(t.ControlPaths), func(path string) bool {
		info, err := os.Lstat(path)
		return err != nil || info.Mode().Type() != os.ModeSocket || !ours(info)
	})
}
