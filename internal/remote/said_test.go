package remote

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// loginThatSaid is a login by OpenSSH to a node, before ssh has said anything.
func loginThatSaid(t *testing.T) *attempt {
	t.Helper()
	target := Target{Name: "gpu1", Node: "gpu1", Address: "10.0.0.1", Port: 2222, User: "train"}
	return &attempt{
		dialer: &SSH{opt: Options{Timeout: 15 * time.Second}}, target: target, folder: t.TempDir(), stderr: Tail{Most: maxTail},
		login: &opensshLogin{login: login{target: target, keys: &keySet{}}},
	}
}

// ssh's words become the error that dsbuild's own SSH gives for the same fault, with the same advice.
func TestWordsOfSSH(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		said       string
		text, hint string
	}{
		"no listener":     {"debug1: Connecting\nssh: connect to host 10.0.0.1 port 2222: Connection refused\n", "cannot connect to 10.0.0.1:2222: connection refused", "start sshd on port 2222"},
		"no answer":       {"ssh: connect to host 10.0.0.1 port 2222: Connection timed out\r\n", "connection to 10.0.0.1:2222 timed out", "port 2222 is open"},
		"no route":        {"ssh: connect to host 10.0.0.1 port 2222: No route to host\n", "No route to host", ""},
		"no name":         {"ssh: Could not resolve hostname gpu1: Name or service not known\n", "cannot resolve host: Name or service not known", `"key":"address"`},
		"no name server":  {"ssh: Could not resolve hostname gpu1: Temporary failure in name resolution\n", "name lookup failed: Temporary failure", "check the name server"},
		"banned":          {"kex_exchange_identification: banner line 0: Not allowed at this time\n", "Not allowed at this time", "PerSourcePenaltyExemptList"},
		"turned away":     {"debug1: x\nkex_exchange_identification: banner line 0: Exceeded MaxStartups\ndebug1: y\n", "connection closed during SSH handshake: node reported: Exceeded MaxStartups", "MaxStartups"},
		"closed":          {"debug1: x\nkex_exchange_identification: Connection closed by remote host\n", "connection closed during SSH handshake: kex_exchange_identification: Connection closed", "MaxStartups"},
		"slow handshake":  {"debug1: Connection established.\nConnection to 10.0.0.1 port 2222 timed out\n", "SSH handshake with 10.0.0.1:2222 timed out after 15s", "the node is not overloaded: ssh -v -p 2222 train@10.0.0.1"},
		"nothing is said": {"", "connection closed during SSH handshake: ", "sshd log"},
	} {
		err := loginThatSaid(t).unreached(c.said)
		if !strings.Contains(err.Error(), c.text) || !strings.Contains(fault.Hint(err), c.hint) || !errors.Is(err, ErrDial) && !errors.Is(err, ErrBanned) {
			t.Errorf("%s: %v\nhint: %s", name, err, fault.Hint(err))
		}
	}
}

// A mistake in the configuration of this machine is no fault of the node.
func TestOwnConfigurationIsTold(t *testing.T) {
	t.Parallel()
	const applied = "debug1: Reading configuration data /etc/ssh/ssh_config\ndebug1: /etc/ssh/ssh_config line 21: Applying options for *\n"
	for log, own := range map[string]bool{
		"/etc/ssh/ssh_config: line 3: Bad configuration option: foo\n/etc/ssh/ssh_config: terminating, 1 bad configuration options\n":  true,
		applied + "ssh: Could not resolve hostname gpu1: Name or service not known\n":                                                  false,
		applied + "debug1: Executing proxy command: exec p.sh\np.sh: line 3: nc: not found\nConnection closed by UNKNOWN port 65535\n": false,
	} {
		a := loginThatSaid(t)
		a.login.log = masterLog(a.folder)
		if err := os.WriteFile(a.login.log, []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		clock := newDeadline(t.Context(), time.Hour)
		err := a.explain(clock)
		clock.end()
		told := strings.Contains(err.Error(), "invalid ssh client configuration: /etc/ssh/ssh_config: line 3") && strings.Contains(fault.Hint(err), "ssh -G")
		if told != own || own == errors.Is(err, ErrDial) {
			t.Errorf("%s\n%v\nhint: %s\nwant told as the configuration: %t", log, err, fault.Hint(err), own)
		}
	}
}

// The native client does not know all algorithms that OpenSSH has.
func TestGroupExchangeHint(t *testing.T) {
	t.Parallel()
	for openSSH, want := range map[bool]string{false: "--ssh openssh", true: "KexAlgorithms"} {
		err := algorithmError(Target{Address: "gpu1", openSSH: openSSH}, "key exchange", "diffie-hellman-group-exchange-sha256, kex-strict-s-v00@openssh.com")
		if !strings.Contains(fault.Hint(err), want) {
			t.Errorf("%v, hint %s", err, fault.Hint(err))
		}
	}
}

// Behind a jump host the reason stands in the log of its own connection.
func TestWordsOfJumpHost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		log, stderr string
		text, hint  string
	}{
		"refused":    {"channel 2: open failed: connect failed: Connection refused\n", "", "from the jump host: node reported: connect failed: Connection refused", "test from the jump host: ssh -p 2222 train@10.0.0.1"},
		"the last":   {"channel 1: open failed: connect failed: No route to host\nchannel 2: open failed: connect failed: Connection timed out\n", "", "Connection timed out", "test from the jump host"},
		"prohibited": {"channel 2: open failed: administratively prohibited: open failed\n", "", "forwarding denied by the jump host", "AllowTcpForwarding"},
		"no log":     {"", "debug1: x\nstdio forwarding failed\ndebug1: y\n", "from the jump host: stdio forwarding failed", ""},
	} {
		a := loginThatSaid(t)
		a.jump = &master{folder: t.TempDir()}
		if err := os.WriteFile(masterLog(a.jump.folder), []byte(c.log), 0o600); err != nil {
			t.Fatal(err)
		}
		a.stderr.Write([]byte(c.stderr)) //nolint:errcheck // never fails
		err := a.unreached("debug1: nothing else\n")
		if !strings.Contains(err.Error(), c.text) || !strings.Contains(fault.Hint(err), c.hint) || !errors.Is(err, ErrDial) {
			t.Errorf("%s: %v\nhint: %s", name, err, fault.Hint(err))
		}
	}
}

// The keys and methods that ssh tried are remembered for the error of a refused login.
func TestKeysThatSSHTried(t *testing.T) {
	t.Parallel()
	a := loginThatSaid(t)
	a.remember(`no such identity: /home/train/.ssh/id_none: No such file or directory
debug1: Authentications that can continue: publickey,password
debug1: Next authentication method: gssapi-with-mic
debug1: Next authentication method: publickey
debug1: Offering public key: train@head ED25519 SHA256:abc agent
debug1: Offering public key: /nowhere/id_rsa RSA SHA256:def
debug1: Authentications that can continue: publickey,keyboard-interactive
`)
	keys := a.login.keys
	if got := strings.Join(keys.labels, "; "); got != "agent key ED25519 SHA256:abc; /nowhere/id_rsa; gssapi-with-mic" {
		t.Errorf("tried: %s", got)
	}
	if got := strings.Join(keys.notes, "; "); got != "/home/train/.ssh/id_none does not exist" {
		t.Errorf("notes: %s", got)
	}
	if offered := a.login.offered.Load(); offered == nil || strings.Join(*offered, ",") != "publickey,keyboard-interactive" {
		t.Errorf("offered: %v", offered)
	}
	none := loginThatSaid(t)
	if none.remember(""); strings.Join(none.login.keys.labels, "") != "no key" || none.login.offered.Load() != nil {
		t.Errorf("%q", none.login.keys.labels)
	}
}

func TestLastLineIsNoDebugMessage(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": "", "debug1: a": "", "a\nb\n\n": "b", "a\r\ndebug1: b\r\ndebug2: c": "a"} {
		if got := lastLine(text); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}

// What a node sends before its key is known, and what it calls itself, is marked as its own.
func TestNodesNamesAreNames(t *testing.T) {
	t.Parallel()
	const lie = "rsa-old. This is expected after the upgrade; hint: ssh-keyscan gpu1 >> ~/.ssh/known_hosts"
	if got := joinNames([]string{"ssh-ed25519", lie, "rsa-sha2-512-cert-v01@openssh.com", strings.Repeat("a", 65)}); got != "ssh-ed25519, rsa-sha2-512-cert-v01@openssh.com" {
		t.Errorf("%q; want the names alone", got)
	}
	l := &login{target: loginThatSaid(t).target, keys: &keySet{}, answers: &Answers{}}
	l.offered.Store(&[]string{"publickey", lie})
	target := Target{Name: "gpu1", Address: "10.0.0.1", Port: 22}
	for name, err := range map[string]error{
		"methods":    l.refused("ssh: unable to authenticate"),
		"disconnect": handshakeError(target, errors.New("ssh: handshake failed: ssh: disconnect, reason 2: "+lie), &hostKeyCheck{}, &login{target: target}, &aliveConn{first: []byte("x")}),
		"two lines":  handshakeError(target, errors.New("ssh: handshake failed: ssh: disconnect, reason 2: closed\n"+lie), &hostKeyCheck{}, &login{target: target}, &aliveConn{first: []byte("x")}),
		"no version": handshakeError(target, io.EOF, &hostKeyCheck{}, &login{target: target}, &aliveConn{first: []byte(lie)}),
	} {
		if before, _, found := strings.Cut(err.Error(), "This is expected"); found && !strings.Contains(before, "node reported: ") {
			t.Errorf("%s: %v; want the node's words marked", name, err)
		}
		if !errors.Is(err, ErrDial) && !errors.Is(err, ErrAuth) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
