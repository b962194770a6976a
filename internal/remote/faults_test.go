//go:build linux

package remote_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// wantError checks sentinel, text and hint of an error.
func wantError(t *testing.T, err, sentinel error, text, advice string) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Errorf("got %v, want %v", err, sentinel)
		return
	}
	if !regexp.MustCompile(text).MatchString(err.Error()) {
		t.Errorf("the message is %q, want %q", err, text)
	}
	hint := fault.Expand(fault.Hint(err), nil, func(s fault.Setting) string { return "set " + s.Key + ": to " + s.To })
	if !regexp.MustCompile(advice).MatchString(hint) {
		t.Errorf("the hint is %q, want %q", hint, advice)
	}
}

func TestNothingListens(t *testing.T) { testNothingListens(t, native) }

func testNothingListens(t *testing.T, by way) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := sshtest.Start(t, sshtest.Options{})
	target := s.Target()
	target.Port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	_, err = by.quick().Dial(t.Context(), target)
	wantError(t, err, remote.ErrDial, `^cannot connect to 127\.0\.0\.1:\d+: connection refused$`, "start sshd on port")
}

func TestNameUnknown(t *testing.T) { testNameUnknown(t, native) }

func testNameUnknown(t *testing.T, by way) {
	behind := sshtest.Start(t, sshtest.Options{}).Target()
	target := behind
	target.Address = "no-such-node.invalid"
	_, err := by.quick().Dial(t.Context(), target)
	wantError(t, err, remote.ErrDial, "cannot resolve host", "^set address: to its IP address")
	behind.Jump = []remote.Target{target}
	_, err = by.quick().Dial(t.Context(), behind)
	wantError(t, err, remote.ErrDial, "^jump host .* cannot resolve host", "^set proxy_jump: to .* with its IP address")
}

// The deadline of ssh.ClientConfig covers only TCP.
func TestStalledHandshake(t *testing.T) { testStalledHandshake(t, native) }

func testStalledHandshake(t *testing.T, by way) {
	t.Parallel()
	s := sshtest.Start(t, sshtest.Options{StallOnAccept: true})
	_, err := by.impatient().Dial(t.Context(), s.Target())
	wantError(t, err, remote.ErrDial, "SSH handshake with .* timed out after [24]s", "ssh -v -p")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err = by.dialer().Dial(ctx, s.Target()); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, remote.ErrDial) {
		t.Errorf("the caller's own end: %v", err)
	}
}

func TestChangedHostKey(t *testing.T) { testChangedHostKey(t, native) }

func testChangedHostKey(t *testing.T, by way) {
	s := sshtest.Start(t, sshtest.Options{WrongKey: true})
	before, _ := os.ReadFile(s.KnownHosts)
	_, err := by.quick().Dial(t.Context(), s.Target())
	want := fmt.Sprintf(`host key verification failed: key of \[127\.0\.0\.1\]:%d has changed: the node presented ssh-ed25519 %s, but %s:1 has ssh-ed25519 SHA256:`,
		s.Port, regexp.QuoteMeta(ssh.FingerprintSHA256(s.HostKey)), regexp.QuoteMeta(s.KnownHosts))
	wantError(t, err, remote.ErrHostKey, want, fmt.Sprintf(`ssh-keygen -f '.*known_hosts' -R '\[127\.0\.0\.1\]:%d'`, s.Port))
	if s.Refused() != 0 {
		t.Error("a key was offered to a server that is not the node")
	}
	if after, _ := os.ReadFile(s.KnownHosts); !bytes.Equal(before, after) {
		t.Error("known_hosts was written to")
	}
}

func TestUnknownHostKey(t *testing.T) { testUnknownHostKey(t, native) }

func testUnknownHostKey(t *testing.T, by way) {
	s := sshtest.Start(t, sshtest.Options{Unknown: true})
	before, _ := os.ReadFile(s.KnownHosts)
	_, err := by.quick().Dial(t.Context(), s.Target())
	wantError(t, err, remote.ErrHostKey, `is not in .*known_hosts; it presented ssh-ed25519 SHA256:`, `compare this fingerprint.*ssh-keyscan -p \d+ 127\.0\.0\.1 >> `)
	if after, _ := os.ReadFile(s.KnownHosts); !bytes.Equal(before, after) {
		t.Error("known_hosts was written to")
	}
	target := s.Target()
	target.KnownHosts = []string{filepath.Join(t.TempDir(), "missing")}
	_, err = by.quick().Dial(t.Context(), target)
	wantError(t, err, remote.ErrHostKey, "is not in .*missing", "ssh-keyscan")
}

// A node whose only known key is of another type has changed too; x/crypto
// alone calls that "no common algorithm".
func TestHostKeyOfAnotherType(t *testing.T) { testHostKeyOfAnotherType(t, native) }

func testHostKeyOfAnotherType(t *testing.T, by way) {
	s := sshtest.Start(t, sshtest.Options{})
	line := fmt.Sprintf("[%s]:%d ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEmKSENjQEezOmxkZMy7opKgwFB9nkt5YRrYMjNuG5N87uRgg6CLrbo5wAdT/y6v0mKV0U2w0WZ2YB/++Tpockg=\n", s.Address, s.Port)
	if err := os.WriteFile(s.KnownHosts, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := by.quick().Dial(t.Context(), s.Target())
	wantError(t, err, remote.ErrHostKey, `known_hosts:1 has ecdsa-sha2-nistp256 SHA256:`, "ssh-keygen")
}

func TestRevokedHostKey(t *testing.T) { testRevokedHostKey(t, native) }

func testRevokedHostKey(t *testing.T, by way) {
	s := sshtest.Start(t, sshtest.Options{})
	line := "@revoked * " + string(ssh.MarshalAuthorizedKey(s.HostKey))
	if err := os.WriteFile(s.KnownHosts, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := by.quick().Dial(t.Context(), s.Target())
	wantError(t, err, remote.ErrHostKey, "which is revoked in .*known_hosts:1$", "")
}

// dsbuild ignores lines that it cannot read, as OpenSSH does. They accept no node, and do not
// affect the nodes of other lines.
func TestUnreadableLinesOfKnownHosts(t *testing.T) {
	unreadable := []string{
		"gpu01 ssh-ed25519 AAAAgarbage", "gpu01", "gpu01 ssh-ed25519", "|1|nosalt ssh-ed25519 AAAA", "@unknown-marker gpu01 ssh-ed25519 AAAA",
		"gpu01 ssh-new-kind AAAADHNzaC1uZXcta2luZAAAAAA=", "@cert-authority * ssh-rsa AAAA", "<<<<<<< HEAD", "\x00\x01\x02", strings.Repeat("x", 100_000),
		"[gpu01 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl",
	}
	s := sshtest.Start(t, sshtest.Options{})
	known, err := os.ReadFile(s.KnownHosts)
	if err != nil {
		t.Fatal(err)
	}
	dialWith := func(lines ...string) error {
		if err := os.WriteFile(s.KnownHosts, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := native.quick().Dial(t.Context(), s.Target())
		if err == nil {
			c.Close()
		}
		return err
	}
	good := strings.TrimSpace(string(known))
	for _, line := range unreadable {
		if err := dialWith(line, good, line); err != nil {
			t.Errorf("%.60q: %v", line, err)
		}
		// A node that only such a line lists is unknown.
		wantError(t, dialWith("# first", line), remote.ErrHostKey, `is not in .*known_hosts \(.*known_hosts:2: `, "ssh-keyscan")
	}
	if err := dialWith(append(unreadable, good)...); err != nil {
		t.Errorf("all of them: %v", err)
	}
	// Errors name the user's own files and lines.
	changed := good[:len(good)-4] + "AAAA"
	wantError(t, dialWith("gpu01", "gpu02", changed), remote.ErrHostKey, regexp.QuoteMeta(s.KnownHosts)+":3 has ssh-ed25519", "ssh-keygen -f '?"+regexp.QuoteMeta(s.KnownHosts))
	wantError(t, dialWith("gpu01", "@revoked * "+strings.SplitN(good, " ", 2)[1], good), remote.ErrHostKey, "which is revoked in "+regexp.QuoteMeta(s.KnownHosts)+":2$", "")
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "dsbuild-known-hosts-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A line that revokes a key counts: if dsbuild cannot read it, it accepts no key.
func TestUnreadableRevocation(t *testing.T) {
	for _, line := range []string{
		"@revoked * ssh-ed25519 AAAAgarbage", "@revoked", "@revoked *", "  @revoked * ssh-new-kind AAAADHNzaC1uZXcta2luZAAAAAA=",
		"@Revoked * ssh-ed25519 AAAA", "@cert-authority @revoked * ssh-ed25519 AAAA", "\ufeff@revoked * ssh-ed25519 AAAA",
	} {
		s := sshtest.Start(t, sshtest.Options{})
		known, err := os.ReadFile(s.KnownHosts)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.KnownHosts, append(known, line...), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err = native.quick().Dial(t.Context(), s.Target())
		wantError(t, err, remote.ErrHostKey, `known_hosts:2: invalid @revoked line`, "fix or remove that line")
	}
}

// rsaKey is the RSA key of all tests, because a new one takes long.
var rsaKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

// rsaSigner is an RSA key that signs with the given algorithms.
func rsaSigner(t *testing.T, algorithms ...string) ssh.Signer {
	t.Helper()
	key, err := rsaKey()
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	limited, err := ssh.NewSignerWithAlgorithms(signer.(ssh.AlgorithmSigner), algorithms)
	if err != nil {
		t.Fatal(err)
	}
	return limited
}

// dsbuild accepts no proof of identity and no integrity check that rests on SHA-1.
func TestSHA1IsNotAccepted(t *testing.T) {
	t.Parallel()
	fine := sshtest.Start(t, sshtest.Options{HostKey: rsaSigner(t, ssh.KeyAlgoRSASHA256)})
	c, err := native.quick().Dial(t.Context(), fine.Target())
	if err != nil {
		t.Fatalf("rsa-sha2-256: %v", err)
	}
	c.Close()

	old := sshtest.Start(t, sshtest.Options{HostKey: rsaSigner(t, ssh.KeyAlgoRSA)})
	_, err = native.quick().Dial(t.Context(), old.Target())
	wantError(t, err, remote.ErrHostKey, `signs only with ssh-rsa \(SHA-1\)`, "HostKeyAlgorithms in the node's sshd_config")
	unknown := sshtest.Start(t, sshtest.Options{HostKey: rsaSigner(t, ssh.KeyAlgoRSA), Unknown: true})
	_, err = native.quick().Dial(t.Context(), unknown.Target())
	wantError(t, err, remote.ErrHostKey, `signs only with ssh-rsa \(SHA-1\)`, "HostKeyAlgorithms in the node's sshd_config")

	for name, algorithms := range map[string]ssh.Config{
		"MAC":          {MACs: []string{ssh.HMACSHA1, ssh.InsecureHMACSHA196}, Ciphers: []string{ssh.CipherAES128CTR}},
		"key exchange": {KeyExchanges: []string{ssh.InsecureKeyExchangeDH14SHA1, ssh.InsecureKeyExchangeDH1SHA1}},
		"cipher":       {Ciphers: []string{ssh.InsecureCipherAES128CBC}},
	} {
		s := sshtest.Start(t, sshtest.Options{Algorithms: algorithms})
		_, err := native.quick().Dial(t.Context(), s.Target())
		wantError(t, err, remote.ErrDial, "no common algorithm for .*"+name, "KexAlgorithms, MACs and Ciphers in the node's sshd_config")
	}
}

// A host certificate is only as good as its signature.
func TestCertificateSignedWithSHA1IsNotAccepted(t *testing.T) {
	t.Parallel()
	for algorithm, fine := range map[string]bool{ssh.KeyAlgoRSASHA512: true, ssh.KeyAlgoRSA: false} {
		authority, host := rsaSigner(t, algorithm), rsaSigner(t, ssh.KeyAlgoRSASHA512)
		certificate := &ssh.Certificate{Key: host.PublicKey(), CertType: ssh.HostCert, ValidPrincipals: []string{"127.0.0.1"}, ValidBefore: ssh.CertTimeInfinity}
		if err := certificate.SignCert(rand.Reader, authority); err != nil {
			t.Fatal(err)
		}
		signer, err := ssh.NewCertSigner(certificate, host)
		if err != nil {
			t.Fatal(err)
		}
		s := sshtest.Start(t, sshtest.Options{HostKey: signer})
		if err := os.WriteFile(s.KnownHosts, append([]byte("@cert-authority * "), ssh.MarshalAuthorizedKey(authority.PublicKey())...), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := native.quick().Dial(t.Context(), s.Target())
		if fine {
			if err != nil {
				t.Errorf("%s: %v", algorithm, err)
				continue
			}
			c.Close()
			continue
		}
		wantError(t, err, remote.ErrHostKey, `a certificate signed with ssh-rsa \(SHA-1\)`, "ssh-keygen -t rsa-sha2-512")
	}
}

func TestRefusedKeyIsNotRetried(t *testing.T) { testRefusedKeyIsNotRetried(t, native) }

func testRefusedKeyIsNotRetried(t *testing.T, by way) {
	s := sshtest.Start(t, sshtest.Options{RefuseAuth: true})
	d := by.trying(5)
	_, err := d.Dial(t.Context(), s.Target())
	wantError(t, err, remote.ErrAuth, `authentication failed for train@127\.0\.0\.1:\d+: tried .*id_ed25519; the node accepts publickey`, "authorized_keys")
	if s.Refused() != 1 || s.Connections() != 1 {
		t.Errorf("%d keys refused on %d connections, want 1 and 1", s.Refused(), s.Connections())
	}
}

func TestNoKeyAtAll(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	target := s.Target()
	target.IdentityFiles = []string{"/no/such/key"}
	_, err := native.quick().Dial(t.Context(), target)
	wantError(t, err, remote.ErrAuth, "^no usable SSH key for train@.*/no/such/key does not exist", "^set identity_file: to an existing private key$")
	if s.Connections() != 0 {
		t.Error("the node was bothered")
	}
}

func TestEncryptedKeyWithoutAgent(t *testing.T) { testEncryptedKeyWithoutAgent(t, native) }

func testEncryptedKeyWithoutAgent(t *testing.T, by way) {
	t.Parallel()
	s := sshtest.Start(t, sshtest.Options{})
	target := s.Target()
	target.IdentityFiles = []string{encrypt(t, s.IdentityFile)}
	_, err := by.quick().Dial(t.Context(), target)
	wantError(t, err, remote.ErrAuth, "locked is encrypted and not in the SSH agent", "ssh-add .*locked")
}

// dsbuild dials a node again that turns connections away before it knows the caller, but not for
// ever.
func TestTurnedAway(t *testing.T) { testTurnedAway(t, native) }

func testTurnedAway(t *testing.T, by way) {
	s := sshtest.Start(t, sshtest.Options{CutAfter: 1, Cuts: 3})
	dial(t, by.quick(), s.Target())
	if s.Connections() != 4 {
		t.Errorf("%d connections", s.Connections())
	}
	s = sshtest.Start(t, sshtest.Options{CutAfter: 1})
	_, err := by.trying(3).Dial(t.Context(), s.Target())
	wantError(t, err, remote.ErrDial, "closed during SSH handshake", "MaxStartups")
	if s.Connections() != 5 {
		t.Errorf("%d connections", s.Connections())
	}
}

// The caller may retry a connection that breaks later.
func TestRetryHelpsAfterACut(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{CutAuths: 2})
	dial(t, native.trying(3), s.Target())
	if s.Connections() != 3 {
		t.Errorf("%d connections", s.Connections())
	}
	_, err := native.trying(2).Dial(t.Context(), sshtest.Start(t, sshtest.Options{CutAuths: 9}).Target())
	wantError(t, err, remote.ErrDial, "closed during SSH handshake", "sshd log")
}

func TestCutWhileRunning(t *testing.T) { testCutWhileRunning(t, native) }

func testCutWhileRunning(t *testing.T, by way) {
	s := sshtest.Start(t, sshtest.Options{})
	c := dial(t, by.quick(), s.Target())
	err := c.Run(t.Context(), remote.Command{Argv: []string{"sh", "-c", "echo on; sleep 60"}, Stdout: writerFunc(func(b []byte) (int, error) {
		s.Cut()
		return len(b), nil
	})})
	wantError(t, err, remote.ErrLost, `lost connection to .* while running a command`, "reboot")
}

func TestCutWhilePutting(t *testing.T) { testCutWhilePutting(t, native) }

func testCutWhilePutting(t *testing.T, by way) {
	s := sshtest.Start(t, sshtest.Options{CutAfter: 1 << 20})
	c := dial(t, by.quick(), s.Target())
	up, _ := blob(8<<20, filepath.Join(s.Home, "big"))
	err := c.Put(t.Context(), up)
	wantError(t, err, remote.ErrLost, `while writing .*\.part`, "")
	if _, err := os.Stat(up.Path); err == nil {
		t.Error("half a file appeared under its name")
	}
}

func TestSilenceIsNoticed(t *testing.T) { testSilenceIsNoticed(t, native) }

func testSilenceIsNoticed(t *testing.T, by way) {
	t.Parallel()
	s := sshtest.Start(t, sshtest.Options{StallAfter: 1 << 20})
	c := dial(t, by.impatient(), s.Target())
	up, _ := blob(8<<20, filepath.Join(s.Home, "big"))
	err := c.Put(t.Context(), up)
	wantError(t, err, remote.ErrLost, "no response for", "network")
}

// dsbuild does not give up a node because a program there is silent for long.
func TestSilentProgramIsLeftAlone(t *testing.T) { testSilentProgramIsLeftAlone(t, native) }

func testSilentProgramIsLeftAlone(t *testing.T, by way) {
	t.Parallel()
	s := sshtest.Start(t, sshtest.Options{})
	c := dial(t, by.impatient(), s.Target())
	if err := c.Run(t.Context(), remote.Command{Argv: []string{"sleep", "3"}}); err != nil {
		t.Error(err)
	}
}

func TestCancelOnAStalledNode(t *testing.T) { testCancelOnAStalledNode(t, native) }

func testCancelOnAStalledNode(t *testing.T, by way) {
	t.Parallel()
	s := sshtest.Start(t, sshtest.Options{StallAfter: 1 << 20})
	c := dial(t, by.dialer(), s.Target()) // its keepalive would take 15 s
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	up, _ := blob(8<<20, filepath.Join(s.Home, "big"))
	if err := c.Put(ctx, up); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// A server stuck on a hung file system does not end its SFTP session, while its sshd still
// answers keepalives.
func TestSFTPThatDoesNotEnd(t *testing.T) { testSFTPThatDoesNotEnd(t, native) }

func testSFTPThatDoesNotEnd(t *testing.T, by way) {
	t.Parallel()
	for _, name := range []string{"done", "cancelled"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sshtest.Start(t, sshtest.Options{IgnoreEOF: true, Latency: 10 * time.Millisecond})
			c := dial(t, by.quick(), s.Target())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			up, _ := blob(1<<20, filepath.Join(s.Home, "file"))
			if name == "cancelled" {
				up.Progress = func(int64) { cancel() } // in the middle of the upload
			}
			put := make(chan error, 1)
			go func() { put <- c.Put(ctx, up) }()
			select {
			case err := <-put:
				if !errors.Is(err, ctx.Err()) {
					t.Errorf("got %v", err)
				}
			case <-time.After(time.Minute):
				t.Fatal("Put does not return")
			}
			err := c.Run(t.Context(), remote.Command{Argv: []string{"true"}})
			wantError(t, err, remote.ErrLost, "an SFTP session did not end", "")
		})
	}
}

func TestNoSpace(t *testing.T) { testNoSpace(t, native) }

func testNoSpace(t *testing.T, by way) {
	for name, c := range map[string]struct {
		opt  sshtest.Options
		want string
	}{
		"known": {sshtest.Options{NoSpaceAfter: 1 << 20}, `no space left on the node: .* needs 4\.0 MiB, but only .* is free`},
	} {
		t.Run(name, func(t *testing.T) {
			s := sshtest.Start(t, c.opt)
			conn := dial(t, by.quick(), s.Target())
			up, _ := blob(4<<20, filepath.Join(s.Home, "big"))
			wantError(t, conn.Put(t.Context(), up), remote.ErrNoSpace, c.want, "df -h")
			noParts(t, s.Home)
		})
	}
}

func TestCorruptionIsNoticed(t *testing.T) { testCorruptionIsNoticed(t, native) }

func testCorruptionIsNoticed(t *testing.T, by way) {
	s := sshtest.Start(t, sshtest.Options{Corrupt: true})
	c := dial(t, by.quick(), s.Target())
	up, _ := blob(1<<20, filepath.Join(s.Home, "big"))
	err := c.Put(t.Context(), up)
	if err == nil || !strings.Contains(err.Error(), "on the node, expected") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(up.Path); err == nil {
		t.Error("the corrupt file appeared")
	}
	noParts(t, s.Home)
}

// The node's own reason is a part of the error, and what dsbuild can do about it is the hint.
func TestReasonOfTheNode(t *testing.T) { testReasonOfTheNode(t, native) }

func testReasonOfTheNode(t *testing.T, by way) {
	for banner, tip := range map[string]string{
		"Access denied by pam_slurm_adopt: you have no active jobs on this node\n": "--via slurm",
		"Access denied: user train (uid=1000) has no active jobs on this node.\n":  "--via slurm",
		"Welcome! Please run no jobs on login nodes.\n":                            "authorized_keys",
		"System is going down.\nMaintenance until 18:00.\n":                        "",
	} {
		s := sshtest.Start(t, sshtest.Options{RefuseAuth: true, Banner: banner})
		_, err := by.quick().Dial(t.Context(), s.Target())
		want := "node reported: " + strings.Join(strings.Fields(banner), " ")
		if !errors.Is(err, remote.ErrAuth) || !strings.Contains(err.Error(), want) || !strings.Contains(fault.Hint(err), tip) || fault.Hint(err) == "" {
			t.Errorf("%v, hint %q; want %q, and a hint with %q", err, fault.Hint(err), want, tip)
		}
	}
}

// A node without SFTP, or whose shell prints something into it, receives files by a program.
func TestNoSFTP(t *testing.T) { testNoSFTP(t, native) }

func testNoSFTP(t *testing.T, by way) {
	t.Parallel()
	for name, opt := range map[string]sshtest.Options{"no subsystem": {NoSFTP: true}, "a greeting": {Greeting: "welcome to the node\n"}, "a long one": {Greeting: strings.Repeat("welcome\n", 400_000)}} {
		s := sshtest.Start(t, opt)
		c := dial(t, by.quick(), s.Target())
		for i, size := range []int{10, 3 << 20, 0} {
			up, content := blob(size, filepath.Join(s.Home, fmt.Sprint("file", i)))
			if err := c.Put(t.Context(), up); err != nil {
				t.Errorf("%s: %d bytes: %v", name, size, err)
				continue
			}
			if got, err := os.ReadFile(up.Path); err != nil || !bytes.Equal(got, content) {
				t.Errorf("%s: %d bytes arrived (%v), want the %d that were sent", name, len(got), err, size)
			}
		}
		up, _ := blob(10, filepath.Join(s.Home, "nowhere", "file"))
		if err := c.Put(t.Context(), up); err == nil || !strings.Contains(err.Error(), "no such directory on the node") {
			t.Errorf("%s: %v, want an error about the folder", name, err)
		}
		noParts(t, s.Home)
	}
}

// One packet at a time takes 512 times the latency; a window of packets, a few times.
func TestPutFillsALongLine(t *testing.T) { testPutFillsALongLine(t, native) }

func testPutFillsALongLine(t *testing.T, by way) {
	t.Parallel()
	const latency = 100 * time.Millisecond
	s := sshtest.Start(t, sshtest.Options{Latency: latency})
	c := dial(t, by.dialer(), s.Target())
	up, _ := blob(16<<20, filepath.Join(s.Home, "big"))
	begin := time.Now()
	if err := c.Put(t.Context(), up); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > 256*latency {
		t.Errorf("took %s", d)
	}
}

func TestJumpHostsAreShared(t *testing.T) { testJumpHostsAreShared(t, native) }

func testJumpHostsAreShared(t *testing.T, by way) {
	t.Parallel()
	bastion := sshtest.Start(t, sshtest.Options{Name: "bastion"})
	inner := sshtest.Start(t, sshtest.Options{Name: "inner"})
	var nodes []*sshtest.Server
	for range 6 {
		nodes = append(nodes, sshtest.Start(t, sshtest.Options{}))
	}
	d := by.quick()
	var wg sync.WaitGroup
	conns := make([]remote.Conn, len(nodes))
	for i, n := range nodes {
		wg.Go(func() {
			target := n.Target()
			target.Jump = []remote.Target{bastion.Target(), inner.Target()}
			c, err := d.Dial(t.Context(), target)
			if err != nil {
				t.Error(err)
				return
			}
			conns[i] = c
			o, _, err := output(t, c, remote.Command{Argv: []string{"sh", "-c", "echo $HOME"}})
			if err != nil || strings.TrimSpace(o) != n.Home {
				t.Errorf("node %d: %q, %v", i, o, err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	if bastion.Connections() != 1 || inner.Connections() != 1 {
		t.Errorf("%d connections to the first jump host, %d to the second, want 1 each", bastion.Connections(), inner.Connections())
	}
	for _, c := range conns {
		c.Close()
	}
	for deadline := time.Now().Add(time.Minute); bastion.Open()+inner.Open() > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a jump host is still connected after its last node")
		}
	}
}

// dsbuild opens nothing through a jump host with another key than known_hosts has, or with none there.
func TestJumpHostIsChecked(t *testing.T) { testJumpHostIsChecked(t, native) }

func testJumpHostIsChecked(t *testing.T, by way) {
	for name, opt := range map[string]sshtest.Options{"changed": {WrongKey: true}, "unknown": {Unknown: true}} {
		bastion, s := sshtest.Start(t, opt), sshtest.Start(t, sshtest.Options{})
		target := s.Target()
		target.Jump = []remote.Target{bastion.Target()}
		if _, err := by.quick().Dial(t.Context(), target); !errors.Is(err, remote.ErrHostKey) || !strings.Contains(err.Error(), "jump host") {
			t.Errorf("%s: %v", name, err)
		}
		if s.Connections() != 0 || bastion.Refused() != 0 {
			t.Errorf("%s: %d connections to the node, %d keys offered to the jump host", name, s.Connections(), bastion.Refused())
		}
	}
}

func TestJumpHostRefusesOnce(t *testing.T) { testJumpHostRefusesOnce(t, native) }

func testJumpHostRefusesOnce(t *testing.T, by way) {
	bastion := sshtest.Start(t, sshtest.Options{RefuseAuth: true})
	d := by.quick()
	for range 5 {
		target := sshtest.Start(t, sshtest.Options{}).Target()
		target.Jump = []remote.Target{bastion.Target()}
		_, err := d.Dial(t.Context(), target)
		wantError(t, err, remote.ErrAuth, "^jump host 127.0.0.1: authentication failed", "authorized_keys")
	}
	if bastion.Refused() != 1 {
		t.Errorf("the jump host was asked %d times", bastion.Refused())
	}
}

// A connection that breaks during the tries of keys proves nothing about the keys.
func TestJumpHostCutsAuthentication(t *testing.T) {
	bastion := sshtest.Start(t, sshtest.Options{CutAuths: 2})
	target := sshtest.Start(t, sshtest.Options{}).Target()
	target.Jump = []remote.Target{bastion.Target()}
	d := native.quick()
	_, err := d.Dial(t.Context(), target)
	wantError(t, err, remote.ErrDial, "^jump host 127.0.0.1: .*closed during SSH handshake", "MaxStartups")
	dial(t, native.trying(2), target)
	if bastion.Connections() != 3 {
		t.Errorf("%d connections to the jump host, want 3", bastion.Connections())
	}
}

func TestJumpHostComesBack(t *testing.T) { testJumpHostComesBack(t, native) }

func testJumpHostComesBack(t *testing.T, by way) {
	bastion := sshtest.Start(t, sshtest.Options{})
	target := sshtest.Start(t, sshtest.Options{}).Target()
	target.Jump = []remote.Target{bastion.Target()}
	d := by.trying(5)
	first := dial(t, d, target)
	bastion.Cut()
	if err := first.Run(t.Context(), remote.Command{Argv: []string{"sleep", "10"}}); !errors.Is(err, remote.ErrLost) {
		t.Errorf("through a cut jump host: %v", err)
	}
	second := dial(t, d, target)
	if err := second.Run(t.Context(), remote.Command{Argv: []string{"true"}}); err != nil {
		t.Error(err)
	}
}

func TestJumpHostCannotReach(t *testing.T) { testJumpHostCannotReach(t, native) }

func testJumpHostCannotReach(t *testing.T, by way) {
	bastion := sshtest.Start(t, sshtest.Options{})
	gone := sshtest.Start(t, sshtest.Options{})
	target := gone.Target()
	gone.Stop()
	target.Jump = []remote.Target{bastion.Target()}
	_, err := by.quick().Dial(t.Context(), target)
	wantError(t, err, remote.ErrDial, "cannot connect to .* from the jump host: ", "AllowTcpForwarding")
}

func TestJumpHostForbidsForwarding(t *testing.T) { testJumpHostForbidsForwarding(t, native) }

func testJumpHostForbidsForwarding(t *testing.T, by way) {
	bastion := sshtest.Start(t, sshtest.Options{NoForward: true})
	target := sshtest.Start(t, sshtest.Options{}).Target()
	target.Jump = []remote.Target{bastion.Target()}
	_, err := by.quick().Dial(t.Context(), target)
	wantError(t, err, remote.ErrDial, "forwarding denied by the jump host", "AllowTcpForwarding and PermitOpen")
}

// Waiting twice for a silent node would hold up the others, so dsbuild waits once.
func TestSilenceIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	s := sshtest.Start(t, sshtest.Options{StallOnAccept: true})
	_, err := native.impatient().Dial(t.Context(), s.Target())
	wantError(t, err, remote.ErrDial, "SSH handshake with .* timed out", "")
	if s.Connections() != 1 {
		t.Errorf("%d connections", s.Connections())
	}
}

func TestResetInTheHandshake(t *testing.T) { testResetInTheHandshake(t, native) }

func testResetInTheHandshake(t *testing.T, by way) {
	_, err := by.quick().Dial(t.Context(), sshtest.Start(t, sshtest.Options{Reset: true}).Target())
	wantError(t, err, remote.ErrDial, "closed during SSH handshake: .*reset by", "MaxStartups")
}

func TestStalledNodeBehindAJumpHost(t *testing.T) {
	t.Parallel()
	bastion := sshtest.Start(t, sshtest.Options{})
	target := sshtest.Start(t, sshtest.Options{StallOnAccept: true}).Target()
	target.Jump = []remote.Target{bastion.Target()}
	_, err := native.impatient().Dial(t.Context(), target)
	wantError(t, err, remote.ErrDial, "SSH handshake with .* timed out", "")
}

func TestNoGoroutineIsLeft(t *testing.T) { testNoGoroutineIsLeft(t, native) }

func testNoGoroutineIsLeft(t *testing.T, by way) {
	before := runtime.NumGoroutine()
	t.Run("use", func(t *testing.T) {
		d := by.impatient()
		bastion := sshtest.Start(t, sshtest.Options{})
		for _, opt := range []sshtest.Options{{}, {StallOnAccept: true}, {WrongKey: true}, {RefuseAuth: true}, {CutAfter: 1 << 16}} {
			s := sshtest.Start(t, opt)
			target := s.Target()
			target.Jump = []remote.Target{bastion.Target()}
			c, err := d.Dial(t.Context(), target)
			if err != nil {
				continue
			}
			up, _ := blob(1<<20, filepath.Join(s.Home, "file"))
			c.Put(t.Context(), up)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			c.Run(ctx, remote.Command{Argv: []string{"sleep", "60"}})
			cancel()
			c.Close()
		}
	})
	for deadline := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<18)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
	}
}
