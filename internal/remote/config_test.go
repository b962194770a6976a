//go:build linux

package remote_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// configured is a dialer with this ssh_config.
func configured(t *testing.T, text string) *remote.SSH {
	t.Helper()
	t.Setenv("HOME", t.TempDir())
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return remote.NewSSH(remote.Options{Config: file, AgentSocket: "none"})
}

const clientConfig = `
Host gpu*
  HostName %h.cluster.example
  User train
  Port 2200
  IdentityFile ~/.ssh/cluster
  IdentityFile /keys/%r@%h
  ProxyJump ops@bastion:2222,inner
  UserKnownHostsFile ~/kh1 /etc/kh2
Host bastion
  HostName 192.0.2.1
  IdentityFile ~/.ssh/bastion
Host inner
  Port 2300
  ProxyJump never-used
Host direct
  ProxyJump none
Host *
  User fallback
`

// account is the home folder that ssh uses, whatever HOME is.
func account(t *testing.T) string {
	t.Helper()
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	return u.HomeDir
}

func TestResolve(t *testing.T) {
	d := configured(t, clientConfig)
	home := os.Getenv("HOME")
	got, err := d.Resolve(t.Context(), remote.Target{Name: "gpu1/train", Address: "gpu1"})
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "gpu1/train" || got.Address != "gpu1.cluster.example" || got.User != "train" || got.Port != 2200 {
		t.Errorf("got %+v", got)
	}
	if want := home + "/.ssh/cluster /keys/train@gpu1.cluster.example"; strings.Join(got.IdentityFiles, " ") != want {
		t.Errorf("identities %q, want %q", got.IdentityFiles, want)
	}
	if got.KnownHosts[0] != account(t)+"/kh1" || got.KnownHosts[1] != "/etc/kh2" {
		t.Errorf("known hosts %q", got.KnownHosts)
	}
	if len(got.Jump) != 2 {
		t.Fatalf("jumps %+v", got.Jump)
	}
	b, i := got.Jump[0], got.Jump[1]
	if b.Address != "192.0.2.1" || b.User != "ops" || b.Port != 2222 || b.IdentityFiles[0] != home+"/.ssh/bastion" {
		t.Errorf("the bastion is %+v", b)
	}
	if i.Address != "inner" || i.User != "fallback" || i.Port != 2300 || i.IdentityFiles[0] != home+"/.ssh/cluster" {
		t.Errorf("the inner one is %+v", i)
	}
	again, err := d.Resolve(t.Context(), got)
	if err != nil || fmt.Sprint(again) != fmt.Sprint(got) {
		t.Errorf("resolving twice changes it: %+v, %v", again, err)
	}
}

func TestResolveInventoryWins(t *testing.T) {
	d := configured(t, clientConfig)
	in := remote.Target{
		Address: "gpu1", User: "root", Port: 22, IdentityFiles: []string{"/id"}, KnownHosts: []string{"/kh"},
		Jump: []remote.Target{{Address: "bastion"}},
	}
	got, err := d.Resolve(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if got.User != "root" || got.Port != 22 || got.IdentityFiles[0] != "/id" || len(got.KnownHosts) != 1 || got.KnownHosts[0] != "/kh" {
		t.Errorf("got %+v", got)
	}
	// The inventory's known_hosts applies to its jump hosts too.
	if len(got.Jump) != 1 || got.Jump[0].Address != "192.0.2.1" || got.Jump[0].KnownHosts[0] != "/kh" {
		t.Errorf("jumps %+v", got.Jump)
	}
	got, err = d.Resolve(t.Context(), remote.Target{Name: "direct"})
	if err != nil || len(got.Jump) != 0 || got.Address != "direct" || got.User != "fallback" || got.Port != 22 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestResolveRefusals(t *testing.T) {
	d := configured(t, "Host a\n ProxyJump b\nHost b\n ProxyJump a\nHost p\n Port 99999\nHost j\n ProxyJump x:y\n")
	for _, target := range []remote.Target{{}, {Address: "-oProxyCommand=id"}, {Address: "a"}, {Address: "p"}, {Address: "j"}} {
		if got, err := d.Resolve(t.Context(), target); err == nil {
			t.Errorf("%+v gave %+v", target, got)
		}
	}
}

// ssh evaluates Match exec.
func TestResolveMatchExec(t *testing.T) {
	if _, err := exec.LookPath("ssh"); err != nil {
		t.Skip(err)
	}
	d := configured(t, "Match exec \"true\"\n  User by-exec\nHost gpu1\n  Port 2200\n")
	got, err := d.Resolve(t.Context(), remote.Target{Address: "gpu1"})
	if err != nil || got.User != "by-exec" || got.Port != 2200 || got.Address != "gpu1" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// OpenSSH evaluates Match: it compares with the value of HostName, and the Match may stand in an
// included file.
func TestResolveMatch(t *testing.T) {
	if _, err := exec.LookPath("ssh"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	more := filepath.Join(dir, "more")
	if err := os.WriteFile(more, []byte("Match host *.example originalhost cpu*\n User nobody\nMatch host *.example\n User by-name\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := configured(t, "Host gpu*\n HostName %h.example\n IdentityFile ~/k-%h-%r\nInclude "+dir+"/mo*\nMatch host gpu1\n Port 1\n")
	got, err := d.Resolve(t.Context(), remote.Target{Address: "gpu1"})
	if err != nil || got.User != "by-name" || got.Port != 22 || got.Address != "gpu1.example" {
		t.Errorf("got %+v, %v", got, err)
	}
	if want := os.Getenv("HOME") + "/k-gpu1.example-by-name"; len(got.IdentityFiles) != 1 || got.IdentityFiles[0] != want {
		t.Errorf("identities %q, want %q", got.IdentityFiles, want)
	}
}

// A mistake in the configuration of this machine is told with its file and line, and not as the
// node's fault.
func TestBrokenConfiguration(t *testing.T) {
	needSSH(t)
	included := write(t, "more", "\n\nFoo bar\n")
	for text, want := range map[string]string{
		"Match nonsense\n User x\n":        ` line 1: Bad Match condition$`,
		"Host *\n Foo bar\n":               `: line 2: Bad configuration option: foo$`,
		"Include " + included + "\n":       included + `: line 3: Bad configuration option: foo$`,
		"Host *\n ProxyCommand=\nPort 1\n": ` line 2: `,
	} {
		s := sshtest.Start(t, sshtest.Options{})
		for _, way := range []remote.Client{remote.Auto, remote.OpenSSH} {
			configured(t, "")
			d := remote.NewSSH(remote.Options{Config: write(t, "config", text), AgentSocket: "none", Client: way})
			_, err := d.Dial(t.Context(), s.Target())
			if err == nil || errors.Is(err, remote.ErrDial) || !regexp.MustCompile(`^invalid ssh client configuration: .*`+want).MatchString(err.Error()) {
				t.Errorf("%q: got %v, want the line", text, err)
			}
			if !strings.Contains(fault.Hint(err), "ssh -G '"+s.Address+"'") {
				t.Errorf("%q: hint %q", text, fault.Hint(err))
			}
		}
	}
}

// Arguments of ssh mean what they mean to ssh: they go before its configuration, and after what the
// inventory says in its own keys.
func TestSSHArguments(t *testing.T) {
	needSSH(t)
	s := sshtest.Start(t, sshtest.Options{})
	other := write(t, "other", "Host gpu1\n HostName "+s.Address+"\n Port 1\n User by-file\n")
	d := configured(t, "Host gpu1\n HostName gpu1.invalid\n User by-config\n")
	args := []string{"-F", other, "-p", strconv.Itoa(s.Port), "-i", s.IdentityFile, "-o", "UserKnownHostsFile=" + s.KnownHosts, "-l", "by-args"}
	target := remote.Target{Name: "gpu1", User: s.Target().User, SSHArgs: args}
	dial(t, d, target)
	target.User = ""
	got, err := d.Resolve(t.Context(), target)
	if err != nil || got.User != "by-args" || got.Port != s.Port || got.Address != s.Address {
		t.Errorf("got %+v, %v", got, err)
	}
	target.SSHArgs = []string{"-o", "ProxyJump=ops@gate:2022"}
	got, err = d.Resolve(t.Context(), target)
	if err != nil || len(got.Jump) != 1 || got.Jump[0].User != "ops" || got.Jump[0].Address != "gate" || got.Jump[0].Port != 2022 {
		t.Errorf("got the jump hosts %+v, %v", got.Jump, err)
	}
	target.SSHArgs = []string{"-o", "Nonsense=1"}
	if _, err := d.Resolve(t.Context(), target); err == nil || !strings.Contains(err.Error(), "Bad configuration option: nonsense") {
		t.Errorf("got %v, want ssh's own message", err)
	}
	t.Setenv("PATH", t.TempDir())
	target.SSHArgs = args
	if _, err := configured(t, "").Resolve(t.Context(), target); err == nil || !strings.Contains(err.Error(), "ssh not found on PATH") || fault.Hint(err) == "" {
		t.Errorf("without ssh: got %v", err)
	}
}

// Without an ssh the inventory alone counts, and one note says so.
func TestResolveWithoutSSH(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	file := write(t, "config", "Host *\n User by-config\n Port 2200\n")
	var said []string
	d := remote.NewSSH(remote.Options{Config: file, AgentSocket: "none", Note: func(text string) { said = append(said, text) }})
	for range 2 {
		got, err := d.Resolve(t.Context(), remote.Target{Address: "gpu1", Port: 2222})
		if err != nil || got.Port != 2222 || got.User == "by-config" {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	if want := "ignoring " + file + ": ssh not found on PATH"; strings.Join(said, "|") != want {
		t.Errorf("said %q", said)
	}
}

// ticket is a folder with a klist that ends with this status.
func ticket(t *testing.T, status int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), fmt.Sprintf("klist-%d", status))
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "klist"), fmt.Appendf(nil, "#!/bin/sh\nexit %d\n", status), 0o700)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Where no line of the configuration is for some hosts alone, ssh is asked once for all; else it is asked for each.
func TestResolveAsksOnce(t *testing.T) {
	program, err := exec.LookPath("ssh")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	mark := filepath.Join(dir, "asked")
	script := fmt.Sprintf("#!/bin/sh\necho asked >>%s\nexec %s \"$@\"\n", mark, program)
	if err := os.WriteFile(filepath.Join(dir, "ssh"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	include := func(text string) string { return "Include " + write(t, "more", text) + "\n" }
	for text, times := range map[string]int{
		"":         1,
		"User x\n": 1,
		"Host *\n  User x\n  IdentityFile ~/keys/%h\n": 1,
		include("User x\nMatch all\n Port 22\n"):       1,
		"Match final all\n User x\n":                   1,
		"Host gpu2\n User x\n":                         3,
		"host=gpu2\n User x\n":                         3,
		"Match host all\n User x\n":                    3,
		"Match user root exec \"true\"\n User x\n":     3,
		include("Host gpu2\n User x\n"):                3,
		"HostName %h.example\n":                        3,
		"ControlPath ~/.ssh/%C\n":                      3,
	} {
		os.Remove(mark)
		file := write(t, "config", text)
		dialer := func() *remote.SSH { return remote.NewSSH(remote.Options{Config: file, AgentSocket: "none"}) }
		d, addresses := dialer(), map[string]bool{}
		for _, alias := range []string{"gpu1", "gpu2", "gpu3"} {
			got, err := d.Resolve(t.Context(), remote.Target{Address: alias})
			alone, other := dialer().Resolve(t.Context(), remote.Target{Address: alias})
			if err := errors.Join(err, other); err != nil {
				t.Fatal(err)
			}
			if addresses[got.Address] = true; fmt.Sprint(got) != fmt.Sprint(alone) {
				t.Errorf("%q: %s has %+v, asked alone %+v", text, alias, got, alone)
			}
		}
		asked, err := os.ReadFile(mark)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(asked), "asked") - 3; n != times {
			t.Errorf("%q: ssh was asked %d times, want %d", text, n, times)
		}
		if len(addresses) != 3 {
			t.Errorf("%q: %v, want three addresses", text, addresses)
		}
	}
}

// A thousand nodes do not start a thousand processes at once.
func TestResolveAsksFewAtOnce(t *testing.T) {
	dir := t.TempDir()
	script := `#!/bin/sh
mkdir "$0.d/$$"; ls "$0.d" | wc -l >>"$0.most"
sleep .05
rmdir "$0.d/$$"; echo user asked
`
	ssh := filepath.Join(dir, "ssh")
	if err := errors.Join(os.WriteFile(ssh, []byte(script), 0o700), os.Mkdir(ssh+".d", 0o700)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	d := configured(t, "Match user x\n Port 1\n")
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			got, err := d.Resolve(t.Context(), remote.Target{Address: fmt.Sprintf("gpu%d", i)})
			if err != nil || got.User != "asked" {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
	wg.Wait()
	counts, err := os.ReadFile(ssh + ".most")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(counts))
	for _, n := range lines {
		if at, err := strconv.Atoi(n); err != nil || at > max(4, runtime.GOMAXPROCS(0)) {
			t.Errorf("%s at once", n)
		}
	}
	if len(lines) != 30 {
		t.Errorf("asked %d times", len(lines))
	}
}

// A Match exec that hangs holds up only its own node.
func TestResolveEndsWithItsContext(t *testing.T) {
	if _, err := exec.LookPath("ssh"); err != nil {
		t.Skip(err)
	}
	d := configured(t, "Match exec \"exec sleep 90\"\n  User x\n")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := d.Resolve(ctx, remote.Target{Address: "gpu1"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if d := time.Since(begin); d > time.Minute {
		t.Errorf("after %s", d)
	}
}

func TestResolveKeysAndNames(t *testing.T) {
	t.Setenv("OTHER_AGENT", "/run/other")
	d := configured(t, `
Host gpu1
  HostKeyAlias Node-1
  IdentitiesOnly yes
  IdentityAgent ~/my-agent
  CertificateFile ~/.ssh/site-cert.pub
  UserKnownHostsFile none
Host gpu2
  IdentityAgent none
Host gpu3
  IdentityAgent $OTHER_AGENT
Host gpu4
  IdentityAgent SSH_AUTH_SOCK
`)
	home := os.Getenv("HOME")
	got, err := d.Resolve(t.Context(), remote.Target{Address: "gpu1"})
	if err != nil || got.HostKeyAlias != "node-1" || !got.IdentitiesOnly || strings.Join(got.CertificateFiles, " ") != home+"/.ssh/site-cert.pub" ||
		strings.Join(got.KnownHosts, " ") != "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2" {
		t.Errorf("got %+v, %v", got, err)
	}
	for host, want := range map[string]string{"gpu1": account(t) + "/my-agent", "gpu2": "none", "gpu3": "/run/other", "gpu4": "", "gpu5": ""} {
		if got, err := d.Resolve(t.Context(), remote.Target{Address: host}); err != nil || got.Agent != want {
			t.Errorf("%s: agent %q, want %q (%v)", host, got.Agent, want, err)
		}
	}
}

// The settings of the configuration select the SSH implementation.
func TestWhoSpeaks(t *testing.T) {
	needSSH(t)
	const text = `
Host direct
  ProxyCommand none
Host jump
  ProxyJump bastion
Host bastion2
  ProxyCommand nc %h %p
Host far
  ProxyJump bastion2
Host gpu* jump direct
  ProxyCommand ssh -W "%h:%p" bastion
`
	refused := func(t *testing.T, d *remote.SSH, target remote.Target) {
		t.Helper()
		_, err := d.Resolve(t.Context(), target)
		if err == nil || !strings.Contains(err.Error(), "requires OpenSSH: ") || !strings.Contains(fault.Hint(err), "--ssh openssh") {
			t.Errorf("%s: %v, hint %q", target.Address, err, fault.Hint(err))
		}
	}
	configured(t, text)
	native := remote.NewSSH(remote.Options{Config: write(t, "config", text), Client: remote.Native})
	refused(t, native, remote.Target{Address: "gpu1"})
	refused(t, native, remote.Target{Address: "far"})
	auto := configured(t, text)
	for _, fine := range []remote.Target{{Address: "direct"}, {Address: "jump"}, {Address: "gpu1", Jump: []remote.Target{{Address: "bastion"}}}, {Address: "gpu1"}, {Address: "far"}} {
		if _, err := auto.Resolve(t.Context(), fine); err != nil {
			t.Errorf("%s: %v", fine.Address, err)
		}
	}
}

// An ssh that is too old evaluates the configuration, but cannot connect to a node that needs
// OpenSSH.
func TestNeedsNewerSSH(t *testing.T) {
	real, err := exec.LookPath("ssh")
	if err != nil {
		needSSH(t)
	}
	dir := t.TempDir()
	script := "#!/bin/sh\nif [ \"$1\" = -V ]; then echo OpenSSH_7.4p1, OpenSSL 1.0.2k >&2; else exec " + real + " \"$@\"; fi\n"
	if err := os.WriteFile(filepath.Join(dir, "ssh"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	touch := write(t, "id_ed25519_sk", "held by a security key\n")
	if err := os.WriteFile(touch+".pub", []byte(securityKey), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", ticket(t, 0)+":"+os.Getenv("PATH"))
	for line, why := range map[string]string{
		"ProxyCommand nc %h %p":                               "ProxyCommand",
		"PKCS11Provider /usr/lib/p11":                         "PKCS11Provider",
		"KnownHostsCommand /bin/true":                         "KnownHostsCommand",
		"HostbasedAuthentication yes":                         "HostbasedAuthentication",
		"IdentityFile " + touch:                               "security key",
		"BindAddress 127.0.0.9":                               "BindAddress",
		"BindInterface lo":                                    "BindInterface",
		"CheckHostIP yes":                                     "CheckHostIP",
		"KbdInteractiveDevices pam":                           "KbdInteractiveDevices",
		"RevokedHostKeys /etc/none":                           "RevokedHostKeys",
		"GSSAPIKeyExchange yes":                               "GSSAPIKeyExchange with a Kerberos ticket",
		"Ciphers aes128-cbc":                                  "Ciphers",
		"MACs umac-64@openssh.com":                            "MACs",
		"KexAlgorithms sntrup761x25519-sha512@openssh.com":    "KexAlgorithms",
		"PubkeyAcceptedAlgorithms sk-ssh-ed25519@openssh.com": "PubkeyAcceptedAlgorithms",
		"GSSAPIAuthentication yes":                            "GSSAPIAuthentication with a Kerberos ticket",
	} {
		d := configured(t, "Host gpu1\n "+line+"\nHost *\n User train\n")
		_, err = d.Dial(t.Context(), remote.Target{Address: "gpu1"})
		wantError(t, err, remote.ErrOpenSSH, `gpu1 requires OpenSSH \(`+why+`\): .*is OpenSSH_7.4p1, but 8.4 or newer is required`, "newer ssh")
		if got, err := d.Resolve(t.Context(), remote.Target{Address: "gpu2"}); err != nil || got.User != "train" {
			t.Errorf("%s: got %+v, %v", line, got, err)
		}
	}
	// With a known_hosts in the inventory, KnownHostsCommand does not matter.
	if _, err := configured(t, "KnownHostsCommand /bin/true\n").Resolve(t.Context(), remote.Target{Address: "gpu1", KnownHosts: []string{"/kh"}}); err != nil {
		t.Error(err)
	}
}

// A keyword that a newer ssh has sends the node to OpenSSH, unless the configuration does not name it, or ssh ignores it.
func TestUnknownKeywordNeedsOpenSSH(t *testing.T) {
	real, err := exec.LookPath("ssh")
	if err != nil {
		needSSH(t)
	}
	dir := t.TempDir()
	script := "#!/bin/sh\n[ \"$1\" != -V ] || { echo OpenSSH_7.4p1 >&2; exit; }\n" +
		real + " -o IgnoreUnknown=FromWhere,UseKeychain \"$@\" && echo fromwhere there && echo fromhere no\n"
	if err := os.WriteFile(filepath.Join(dir, "ssh"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for text, needs := range map[string]bool{"FromWhere there\n": true, "UseKeychain yes\n": false, "Host gpu1\n": false} {
		_, err := configured(t, text).Resolve(t.Context(), remote.Target{Address: "gpu1"})
		if got := err != nil && strings.Contains(err.Error(), "gpu1 requires OpenSSH (fromwhere)"); got != needs {
			t.Errorf("%q: %v; want that it needs OpenSSH: %t", text, err, needs)
		}
	}
	// As an argument in the inventory it counts, too.
	target := remote.Target{Address: "gpu1", SSHArgs: []string{"-oFromWhere=there"}}
	if _, err := configured(t, "").Resolve(t.Context(), target); err == nil || !strings.Contains(err.Error(), "(fromwhere)") {
		t.Errorf("as an argument: %v", err)
	}
}

// dsbuild's own SSH obeys the keywords that decide by which method and with which algorithms it connects, and tells
// which of them keeps it from connecting.
func TestConfigurationIsObeyed(t *testing.T) {
	needSSH(t)
	ctr := func(mac string) ssh.Config {
		return ssh.Config{Ciphers: []string{ssh.CipherAES128CTR}, MACs: []string{mac}}
	}
	for text, c := range map[string]struct {
		server      sshtest.Options
		is          error // nil: it connects
		words, hint string
	}{
		"PubkeyAuthentication no":                {is: remote.ErrAuth, words: "no usable SSH key", hint: "PubkeyAuthentication"},
		"PreferredAuthentications password":      {is: remote.ErrAuth, words: "no usable SSH key", hint: "PreferredAuthentications"},
		"PreferredAuthentications foo,publickey": {},
		"PubkeyAcceptedAlgorithms rsa-sha2-512":  {is: remote.ErrAuth, words: "is not in PubkeyAcceptedAlgorithms"},
		"PubkeyAcceptedAlgorithms +ssh-rsa":      {},
		"HostKeyAlgorithms rsa-sha2-512":         {is: remote.ErrHostKey, words: "has changed"},
		"HostKeyAlgorithms -ecdsa*":              {},
		"AddressFamily inet6":                    {is: remote.ErrDial, words: "127.0.0.1"},
		"AddressFamily inet":                     {},
		"Ciphers aes256-ctr":                     {server: sshtest.Options{Algorithms: ctr(ssh.HMACSHA256)}, is: remote.ErrDial, words: "no common algorithm", hint: "ssh -G"},
		"Ciphers aes256-ctr,aes128-ctr":          {server: sshtest.Options{Algorithms: ctr(ssh.HMACSHA256)}},
		"MACs hmac-sha2-512":                     {server: sshtest.Options{Algorithms: ctr(ssh.HMACSHA256)}, is: remote.ErrDial, words: "no common algorithm", hint: "ssh -G"},
		"KexAlgorithms ecdh-sha2-nistp256": {
			server: sshtest.Options{Algorithms: ssh.Config{KeyExchanges: []string{ssh.KeyExchangeCurve25519}}},
			is:     remote.ErrDial, words: "no common algorithm", hint: "ssh -G",
		},
		"RequiredRSASize 3072": {server: sshtest.Options{HostKey: rsaSigner(t, ssh.KeyAlgoRSASHA512)}, is: remote.ErrHostKey, words: "fewer than 3072 bits"},
		"RequiredRSASize 2048": {server: sshtest.Options{HostKey: rsaSigner(t, ssh.KeyAlgoRSASHA512)}},
	} {
		s := sshtest.Start(t, c.server)
		conn, err := configured(t, text+"\n").Dial(t.Context(), s.Target())
		if err == nil {
			conn.Close()
		}
		if c.is != nil {
			wantError(t, err, c.is, c.words, c.hint)
		} else if err != nil {
			t.Errorf("%s: %v, want a connection", text, err)
		}
		if c.is != nil && errors.Is(c.is, remote.ErrAuth) && s.Refused() > 0 {
			t.Errorf("%s: the key was tried", text)
		}
	}
}

// PreferredAuthentications is the order, too: a password before a key that the node would accept.
func TestPreferredAuthentications(t *testing.T) {
	needSSH(t)
	s := sshtest.Start(t, sshtest.Options{Password: "pw"})
	for preferred, asked := range map[string]int{"password,publickey": 1, "publickey,password": 0} {
		p := says("pw")
		file := write(t, "config", "PreferredAuthentications "+preferred+"\n")
		dial(t, remote.NewSSH(remote.Options{Config: file, AgentSocket: "none", Answers: remote.NewAnswers(p)}), s.Target())
		if p.count() != asked {
			t.Errorf("%s: asked %q, want %d questions", preferred, p.asked, asked)
		}
	}
}

// What --ssh native cannot obey is told, once.
func TestNativeTellsWhatItIgnores(t *testing.T) {
	needSSH(t)
	var told []string
	file := write(t, "config", "BindAddress 127.0.0.9\n")
	d := remote.NewSSH(remote.Options{Config: file, Client: remote.Native, Note: func(text string) { told = append(told, text) }})
	for _, name := range []string{"gpu1", "gpu2"} {
		if _, err := d.Resolve(t.Context(), remote.Target{Address: name}); err != nil {
			t.Error(err)
		}
	}
	if want := "--ssh native ignores a setting of gpu1: BindAddress"; strings.Join(told, "|") != want {
		t.Errorf("told %q, want %q", told, want)
	}
}

// securityKey is the public key of a security key.
const securityKey = "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4fAAAABHNzaDo= touch"

// relabel writes the server's known_hosts anew, under another name.
func relabel(t *testing.T, s *sshtest.Server, name string) {
	t.Helper()
	line := name + " " + string(ssh.MarshalAuthorizedKey(s.HostKey))
	if err := os.WriteFile(s.KnownHosts, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestHostKeyAlias(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	d := configured(t, "Host "+s.Address+"\n  HostKeyAlias node-1\n")
	relabel(t, s, "node-1")
	dial(t, d, s.Target())
	relabel(t, s, "node-2")
	_, err := d.Dial(t.Context(), s.Target())
	wantError(t, err, remote.ErrHostKey, "node-1 is not in .*known_hosts", `ssh-keyscan -p \d+ 127\.0\.0\.1 \| sed '.*node-1.*' >> `)
	relabel(t, s, fmt.Sprintf("[%s]:%d", s.Address, s.Port))
	_, err = d.Dial(t.Context(), s.Target())
	wantError(t, err, remote.ErrHostKey, "node-1 is not in", "")
}

// With IdentitiesOnly the agent offers only the named keys.
func TestIdentitiesOnly(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	right := readKey(t, s.IdentityFile)
	socket := serveAgent(t, append(otherKeys(t, 3), right)...)
	d := configured(t, "Host *\n  IdentitiesOnly yes\n  IdentityAgent "+socket+"\n")
	target := s.Target()
	target.IdentityFiles = nil
	_, err := d.Dial(t.Context(), target) // this dialer has no agent at all
	wantError(t, err, remote.ErrAuth, "no usable SSH key for", "")

	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, []byte("Host *\n  IdentitiesOnly yes\n  IdentityAgent "+socket+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSH_AUTH_SOCK", "/no/such/agent")
	d = remote.NewSSH(remote.Options{Config: config})
	_, err = d.Dial(t.Context(), target)
	wantError(t, err, remote.ErrAuth, "no usable SSH key for", "")

	// Only the public half of the named key is here.
	signer, err := ssh.NewSignerFromKey(right)
	if err != nil {
		t.Fatal(err)
	}
	named := filepath.Join(t.TempDir(), "id")
	if err := os.WriteFile(named+".pub", ssh.MarshalAuthorizedKey(signer.PublicKey()), 0o600); err != nil {
		t.Fatal(err)
	}
	target.IdentityFiles = []string{named}
	dial(t, d, target)
	if s.Refused() != 0 {
		t.Errorf("%d other keys were offered", s.Refused())
	}
}

func TestParseJump(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "none": "", "host": "@host:0", "u@host:22": "u@host:22", "a, b@c:1": "@a:0 b@c:1",
		"[::1]:22": "@::1:22", "::1": "@::1:0", "ssh://u@h:9": "u@h:9", "u@corp@h": "u@corp@h:0",
	} {
		got, err := remote.ParseJump(in)
		var s []string
		for _, j := range got {
			s = append(s, fmt.Sprintf("%s@%s:%d", j.User, j.Address, j.Port))
		}
		if err != nil || strings.Join(s, " ") != want {
			t.Errorf("%q: %q, %v; want %q", in, s, err, want)
		}
	}
	for _, bad := range []string{"host:", "host:x", "host:0", "host:70000", "a,,b", "@", "-oX"} {
		if got, err := remote.ParseJump(bad); err == nil {
			t.Errorf("%q gave %+v", bad, got)
		}
	}
}

// encrypt writes an encrypted copy of a key, named "locked", with its public half.
func encrypt(t *testing.T, file string) string {
	t.Helper()
	priv := readKey(t, file)
	block, err := ssh.MarshalPrivateKeyWithPassphrase(priv, "", []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	locked := filepath.Join(t.TempDir(), "locked")
	if err := os.WriteFile(locked, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	return locked
}

func readKey(t *testing.T, file string) any {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	priv, err := ssh.ParseRawPrivateKey(b)
	if err != nil {
		t.Fatal(err)
	}
	return priv
}

// serveAgent runs an agent with these keys.
func serveAgent(t *testing.T, keys ...any) string {
	t.Helper()
	ring := agent.NewKeyring()
	for _, k := range keys {
		if err := ring.Add(agent.AddedKey{PrivateKey: k}); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				agent.ServeAgent(ring, c)
			}()
		}
	}()
	return socket
}

func otherKeys(t *testing.T, n int) []any {
	t.Helper()
	var keys []any
	for range n {
		k, err := newEd25519()
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, k)
	}
	return keys
}

func TestAgent(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	s := sshtest.Start(t, sshtest.Options{})
	right := readKey(t, s.IdentityFile)
	target := s.Target()
	target.IdentityFiles = nil
	d := remote.NewSSH(remote.Options{Config: remote.NoConfig, AgentSocket: serveAgent(t, right)})
	dial(t, d, target)

	// The agent unlocks an encrypted file. A named key comes before the others, because a server
	// accepts at most six tries.
	target.IdentityFiles = []string{encrypt(t, s.IdentityFile)}
	full := serveAgent(t, append(otherKeys(t, 9), right)...)
	d = remote.NewSSH(remote.Options{Config: remote.NoConfig, AgentSocket: full})
	dial(t, d, target)
	if s.Refused() != 0 {
		t.Errorf("%d keys were refused before the named one", s.Refused())
	}

	target.IdentityFiles = nil
	_, err := d.Dial(t.Context(), target)
	wantError(t, err, remote.ErrAuth, "too many keys|tried agent key ", "identity_file")

	d = remote.NewSSH(remote.Options{Config: remote.NoConfig, AgentSocket: filepath.Join(t.TempDir(), "gone")})
	_, err = d.Dial(t.Context(), target)
	wantError(t, err, remote.ErrAuth, "cannot reach the SSH agent", "")
}

func TestDefaultIdentity(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	s := sshtest.Start(t, sshtest.Options{})
	if err := os.Mkdir(filepath.Join(home, ".ssh"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(s.IdentityFile, filepath.Join(home, ".ssh", "id_ed25519")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(s.KnownHosts, filepath.Join(home, ".ssh", "known_hosts")); err != nil {
		t.Fatal(err)
	}
	cfg := fmt.Sprintf("Host gpu1\n HostName %s\n Port %d\n", s.Address, s.Port)
	if err := os.WriteFile(filepath.Join(home, ".ssh", "config"), []byte(cfg), 0o600); err != nil {
		t.Fatal(err)
	}
	dial(t, remote.NewSSH(remote.Options{AgentSocket: "none"}), remote.Target{Name: "gpu1"})
}

// A certificate authority signs the node's key and the user's key.
func TestUserCertificate(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	key, err := ssh.NewSignerFromKey(readKey(t, s.IdentityFile))
	if err != nil {
		t.Fatal(err)
	}
	cert := &ssh.Certificate{Key: key.PublicKey(), CertType: ssh.UserCert, ValidPrincipals: []string{"train"}, ValidBefore: ssh.CertTimeInfinity}
	if err := cert.SignCert(rand.Reader, key); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.IdentityFile+"-cert.pub", ssh.MarshalAuthorizedKey(cert), 0o600); err != nil {
		t.Fatal(err)
	}
	dial(t, native.quick(), s.Target()) // the server knows the bare key only
	if s.Refused() != 1 {
		t.Errorf("%d keys refused: the certificate was not tried first", s.Refused())
	}
	// The same with CertificateFile, for a file with another name.
	other := filepath.Join(t.TempDir(), "site.pub")
	if err := os.Rename(s.IdentityFile+"-cert.pub", other); err != nil {
		t.Fatal(err)
	}
	dial(t, configured(t, "Host *\n  CertificateFile "+other+"\n"), s.Target())
	if s.Refused() != 2 {
		t.Errorf("%d keys refused: the certificate of CertificateFile was not tried", s.Refused())
	}
}

func newEd25519() (ed25519.PrivateKey, error) {
	_, k, err := ed25519.GenerateKey(rand.Reader)
	return k, err
}
