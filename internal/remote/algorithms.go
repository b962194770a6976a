package remote

import (
	"crypto/rsa"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
)

// algorithms are the algorithms allowed by the client configuration, in order of preference. An empty list allows
// every algorithm of dsbuild's own SSH.
type algorithms struct {
	kex, ciphers, macs, hostKeys []string
	authorities                  []string // for the signatures in certificates of hosts
	keys                         []string // for the signatures of the user's keys
	rsaBits                      int      // the least size of an RSA key
}

// ownKex are the key exchanges of dsbuild's own SSH, the preferred first.
func ownKex() []string {
	return []string{
		ssh.KeyExchangeCurve25519, ssh.KeyExchangeMLKEM768X25519, ssh.KeyExchangeECDHP256,
		ssh.KeyExchangeECDHP384, ssh.KeyExchangeECDHP521, ssh.KeyExchangeDH14SHA256, ssh.KeyExchangeDH16SHA512,
	}
}

// ownMACs are the MACs of dsbuild's own SSH.
func ownMACs() []string {
	return slices.DeleteFunc(ssh.SupportedAlgorithms().MACs, func(mac string) bool { return mac == ssh.HMACSHA1 })
}

// allowedOf returns the algorithms of own that the configuration allows, in its order.
func allowedOf(own, allowed []string) []string {
	if len(allowed) == 0 {
		return own
	}
	return slices.DeleteFunc(slices.Clone(allowed), func(a string) bool { return !slices.Contains(own, a) })
}

// missing returns the first keyword with no algorithm that dsbuild's own SSH supports, or "".
func (a algorithms) missing() string {
	own := ssh.SupportedAlgorithms()
	keys := slices.DeleteFunc(own.PublicKeyAuths, func(a string) bool { return strings.HasPrefix(a, "sk-") })
	for _, k := range []struct {
		keyword      string
		own, allowed []string
	}{
		{"KexAlgorithms", ownKex(), a.kex},
		{"Ciphers", own.Ciphers, a.ciphers},
		{"MACs", ownMACs(), a.macs},
		{"HostKeyAlgorithms", own.HostKeys, a.hostKeys},
		{"PubkeyAcceptedAlgorithms", keys, a.keys},
	} {
		if len(allowedOf(k.own, k.allowed)) == 0 {
			return k.keyword
		}
	}
	return ""
}

// tooShort reports whether a key is an RSA key, or a certificate of one, with fewer bits than required.
func (a algorithms) tooShort(key ssh.PublicKey) bool {
	if cert, ok := key.(*ssh.Certificate); ok {
		key = cert.Key
	}
	crypto, ok := key.(ssh.CryptoPublicKey)
	if !ok {
		return false
	}
	public, ok := crypto.CryptoPublicKey().(*rsa.PublicKey)
	return ok && public.N.BitLen() < a.rsaBits
}

// signer returns a user's key limited to the allowed algorithms, or the reason why it may not sign.
func (a algorithms) signer(s ssh.Signer) (limited ssh.Signer, why string) {
	kind := s.PublicKey().Type()
	if a.tooShort(s.PublicKey()) {
		return nil, fmt.Sprintf("has fewer than %d bits (RequiredRSASize)", a.rsaBits)
	}
	if len(a.keys) == 0 {
		return s, ""
	}
	const not = "is not in PubkeyAcceptedAlgorithms"
	if kind != ssh.KeyAlgoRSA && kind != ssh.CertAlgoRSAv01 {
		if !slices.Contains(a.keys, kind) {
			return nil, not
		}
		return s, ""
	}
	var hashes []string
	for _, h := range [][2]string{
		{ssh.KeyAlgoRSASHA512, ssh.CertAlgoRSASHA512v01}, {ssh.KeyAlgoRSASHA256, ssh.CertAlgoRSASHA256v01},
	} {
		name := h[0]
		if kind == ssh.CertAlgoRSAv01 {
			name = h[1]
		}
		if slices.Contains(a.keys, name) {
			hashes = append(hashes, h[0])
		}
	}
	as, able := s.(ssh.AlgorithmSigner)
	if len(hashes) == 0 || !able {
		return nil, not
	}
	limited, err := ssh.NewSignerWithAlgorithms(as, hashes)
	if err != nil {
		return nil, err.Error()
	}
	return limited, ""
}
