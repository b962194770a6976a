package remote

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
)

// hostKeyCheck checks the host key in one handshake.
type hostKeyCheck struct {
	target     Target
	db         *keyDB
	algorithms []string // host key algorithms of the node's known keys
	failed     error    // the reason why the key was not accepted
}

func (h *hostKeys) checker(t Target) (*hostKeyCheck, error) {
	db, err := h.load(t.KnownHosts)
	if tooManyFiles(err) {
		return nil, filesError(t, err)
	}
	if err != nil {
		return nil, err
	}
	algorithms := slices.DeleteFunc(db.HostKeyAlgorithms(knownAs(t)), func(a string) bool {
		return slices.Contains(ssh.InsecureAlgorithms().HostKeys, a)
	})
	if algorithms = allowedOf(algorithms, t.allowed.hostKeys); len(algorithms) == 0 {
		// An empty list would allow insecure algorithms too.
		algorithms = allowedOf(ssh.SupportedAlgorithms().HostKeys, t.allowed.hostKeys)
	}
	return &hostKeyCheck{target: t, db: db, algorithms: algorithms}, nil
}

func (c *hostKeyCheck) callback(host string, addr net.Addr, key ssh.PublicKey) error {
	err := c.db.HostKeyCallback()(host, addr, key)
	switch certificate, ok := key.(*ssh.Certificate); {
	case err != nil:
		c.failed = c.explain(err, key)
	case c.target.allowed.tooShort(key):
		c.failed = nodeerr.Errorf("%w: %s presented %s with fewer than %d bits (RequiredRSASize)",
			ErrHostKey, nodeerr.Own(c.name()), key.Type(), c.target.allowed.rsaBits)
	case ok && len(c.target.allowed.authorities) > 0 &&
		!slices.Contains(c.target.allowed.authorities, certificate.Signature.Format):
		c.failed = nodeerr.Errorf("%w: %s presented a certificate signed with %s, which CASignatureAlgorithms excludes",
			ErrHostKey, nodeerr.Own(c.name()), certificate.Signature.Format)
	case ok && slices.Contains(ssh.InsecureAlgorithms().HostKeys, certificate.Signature.Format):
		err = nodeerr.Errorf("%w: %s presented a certificate signed with %s (SHA-1)",
			ErrHostKey, nodeerr.Own(c.name()), certificate.Signature.Format)
		c.failed = fault.WithHint(err,
			"re-sign it: ssh-keygen -t rsa-sha2-512 -s CA ..., or with an Ed25519 CA key")
	}
	return c.failed
}

// name returns the node's name as known_hosts spells it.
func (c *hostKeyCheck) name() string { return xknownhosts.Normalize(knownAs(c.target)) }

func (c *hostKeyCheck) explain(err error, key ssh.PublicKey) error {
	presented := key.Type() + " " + ssh.FingerprintSHA256(key)
	var revoked *xknownhosts.RevokedError
	if errors.As(err, &revoked) {
		return c.revoked(presented, fmt.Sprintf("%s:%d", c.db.fileOf(revoked.Revoked), revoked.Revoked.Line))
	}
	var ke *xknownhosts.KeyError
	switch {
	case !errors.As(err, &ke):
		err = nodeerr.Errorf("%w: %s presented %s: %w", ErrHostKey, nodeerr.Own(c.name()), presented, err)
		return fault.WithHint(err, "compare the certificate (on the node: ssh-keygen -Lf /etc/ssh/ssh_host_ed25519_key-cert.pub) "+
			"with the @cert-authority lines of %s", strings.Join(c.target.KnownHosts, " or "))
	case len(ke.Want) == 0:
		return c.unknown(presented)
	}
	return c.changed(presented, key.Type(), ke.Want)
}

// revoked returns the error of a host key that a line of known_hosts revokes.
func (c *hostKeyCheck) revoked(presented, line string) error {
	return nodeerr.Errorf("%w: %s presented %s, which is revoked in %s",
		ErrHostKey, nodeerr.Own(c.name()), presented, line)
}

func (c *hostKeyCheck) unknown(presented string) error {
	files := c.target.KnownHosts
	err := nodeerr.Errorf("%w: %s is not in %s%s; it presented %s",
		ErrHostKey, nodeerr.Own(c.name()), strings.Join(files, " or "), c.db.unreadable(), nodeerr.Own(presented))
	return fault.WithHint(err, "compare this fingerprint with the node's "+
		"(on the node: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then add it: %s", c.addKey())
}

// changed returns the error of a node whose host key differs from the known keys. kind is the presented key's type.
func (c *hostKeyCheck) changed(presented, kind string, known []xknownhosts.KnownKey) error {
	same := slices.IndexFunc(known, func(k xknownhosts.KnownKey) bool { return k.Key.Type() == kind })
	old := known[max(same, 0)]
	file := c.db.fileOf(old)
	err := nodeerr.Errorf("%w: key of %s has changed: the node presented %s, but %s:%d has %s %s",
		ErrHostKey, nodeerr.Own(c.name()), nodeerr.Own(presented),
		file, nodeerr.Own(old.Line), old.Key.Type(), nodeerr.Own(ssh.FingerprintSHA256(old.Key)))
	const otherwise = "otherwise another machine may be impersonating the node"
	for _, k := range known {
		if forSeveralHosts(c.db.fileOf(k), k.Line) {
			return fault.WithHint(err, "%s:%d is for several hosts: if this node alone was reinstalled, "+
				"add its new key: %s; if all of them have this key, replace the key in that line; "+otherwise,
				c.db.fileOf(k), k.Line, c.addKey())
		}
	}
	if !canAppend(file) {
		return fault.WithHint(err, "if the node was reinstalled, add its new key: %s; "+otherwise, c.addKey())
	}
	return fault.WithHint(err, "if the node was reinstalled, replace its key: ssh-keygen -f %s -R %s && %s; "+otherwise,
		Quote(file), Quote(c.name()), c.addKey())
}

// otherType returns the error of a node that no longer has a key of any known type.
func (c *hostKeyCheck) otherType(offered []string) error {
	if slices.Contains(offered, ssh.KeyAlgoRSA) && !slices.ContainsFunc(offered, func(a string) bool {
		return !slices.Contains(ssh.InsecureAlgorithms().HostKeys, a)
	}) {
		err := nodeerr.Errorf("%w: %s signs only with %s (SHA-1), which is insecure",
			ErrHostKey, nodeerr.Own(c.name()), joinNames(offered))
		return fault.WithHint(err, "add rsa-sha2-512 to HostKeyAlgorithms in the node's sshd_config; "+
			"before OpenSSH 7.2, create an Ed25519 key on the node (ssh-keygen -A) and add it to known_hosts")
	}
	known := c.known()
	if len(known) == 0 {
		return nodeerr.Errorf("%w: %s offers only %s", ErrHostKey, nodeerr.Own(c.name()), joinNames(offered))
	}
	return c.changed(joinNames(offered)+" keys", "", known)
}

// known returns the node's keys in known_hosts. The callback reports them, because no key equals noKey.
func (c *hostKeyCheck) known() []xknownhosts.KnownKey {
	var ke *xknownhosts.KeyError
	if errors.As(c.db.HostKeyCallback()(knownAs(c.target), &net.TCPAddr{IP: net.IPv4zero}, noKey{}), &ke) {
		return ke.Want
	}
	return nil
}

// noKey is a public key that no other key equals.
type noKey struct{}

func (noKey) Type() string                        { return "none" }
func (noKey) Marshal() []byte                     { return []byte("none") }
func (noKey) Verify([]byte, *ssh.Signature) error { return errors.New("no key") }
