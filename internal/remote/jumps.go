package remote

import (
	"errors"
	"fmt"
	"strings"
)

// newJumps holds one connection to each jump host while a node behind it is in use. A thousand
// handshakes at once would exceed a jump host's MaxStartups, and a thousand refused keys would get
// this machine banned. So dsbuild does not retry a login that a jump host refused.
func newJumps() *sharedConns[*sshConn] { return newSharedConns[*sshConn](0, isFinalRefusal) }

// jumpKey returns a key that identifies a chain of jump hosts.
func jumpKey(chain []Target) string {
	var b strings.Builder
	for _, t := range chain {
		fmt.Fprintf(&b, "%s %q %q %q %t %q %q %q %t %t %t %q %q\x00", loginName(t), t.IdentityFiles, t.KnownHosts,
			t.CertificateFiles, t.IdentitiesOnly, t.Agent, t.HostKeyAlias, t.ControlPaths, t.BatchMode, t.NoPassword, t.NoInteractive, t.proxyCommand, t.SSHArgs)
	}
	return b.String()
}

// isFinalRefusal reports whether a retry could only do harm.
func isFinalRefusal(err error) bool {
	return errors.Is(err, ErrAuth) || errors.Is(err, ErrHostKey) || errors.Is(err, ErrBanned)
}
