//go:build linux

package remote_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// person answers questions, and records them.
type person struct {
	answer func(ctx context.Context, question string, echo bool) (string, error)

	mu    sync.Mutex
	asked []string
	open  atomic.Int64
}

func (p *person) Ask(ctx context.Context, question string, echo bool) (string, error) {
	if p.open.Add(1) > 1 {
		return "", errors.New("two questions at once")
	}
	defer p.open.Add(-1)
	p.mu.Lock()
	p.asked = append(p.asked, question)
	p.mu.Unlock()
	return p.answer(ctx, question, echo)
}

func (p *person) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.asked)
}

// says gives the same answer to all questions.
func says(text string) *person {
	return &person{answer: func(context.Context, string, bool) (string, error) { return text, nil }}
}

// inTurn gives one answer after the other.
func inTurn(texts ...string) *person {
	var n atomic.Int64
	return &person{answer: func(context.Context, string, bool) (string, error) {
		if i := int(n.Add(1)); i <= len(texts) {
			return texts[i-1], nil
		}
		return "", errors.New("asked too often")
	}}
}

// all dials every target at once.
func all(t *testing.T, d remote.Dialer, targets []remote.Target) []error {
	t.Helper()
	errs := make([]error, len(targets))
	var wg sync.WaitGroup
	for i, target := range targets {
		wg.Go(func() {
			c, err := d.Dial(t.Context(), target)
			errs[i] = err
			if err == nil {
				t.Cleanup(func() { c.Close() })
			}
		})
	}
	wg.Wait()
	return errs
}

// keyless is a target without a key.
func keyless(s *sshtest.Server) remote.Target {
	target := s.Target()
	target.IdentityFiles = nil
	return target
}

func TestPassphraseIsAskedOnce(t *testing.T) { testPassphraseIsAskedOnce(t, native) }

func testPassphraseIsAskedOnce(t *testing.T, by way) {
	t.Parallel()
	s := sshtest.Start(t, sshtest.Options{})
	target := s.Target()
	target.IdentityFiles = []string{encrypt(t, s.IdentityFile)}
	targets := make([]remote.Target, 12)
	for i := range targets {
		targets[i] = target
	}
	p := inTurn("a slip", "secret")
	for _, err := range all(t, by.attended(p), targets) {
		if err != nil {
			t.Error(err)
		}
	}
	want := target.IdentityFiles[0] + ": passphrase: |" + target.IdentityFiles[0] + ": wrong passphrase; passphrase: "
	if got := strings.Join(p.asked, "|"); got != want {
		t.Errorf("asked %q, want %q", got, want)
	}

	p = says("a slip")
	for _, err := range all(t, by.attended(p), targets) {
		wantError(t, err, remote.ErrAuth, "no passphrase entered for .*locked", "ssh-add")
	}
	if p.count() != 3 {
		t.Errorf("asked %d times", p.count())
	}
}

// dsbuild does not ask for a passphrase that does not help, or that the agent makes unnecessary.
func TestPassphraseIsNotAsked(t *testing.T) { testPassphraseIsNotAsked(t, native) }

func testPassphraseIsNotAsked(t *testing.T, by way) {
	t.Parallel()
	p := says("secret")
	s := sshtest.Start(t, sshtest.Options{RefuseAuth: true})
	target := s.Target()
	target.IdentityFiles = []string{encrypt(t, s.IdentityFile)}
	_, err := by.attended(p).Dial(t.Context(), target)
	wantError(t, err, remote.ErrAuth, "tried .*locked; the node accepts publickey", "")

	s = sshtest.Start(t, sshtest.Options{})
	target = s.Target()
	target.IdentityFiles = []string{encrypt(t, s.IdentityFile)}
	d := remote.NewSSH(remote.Options{Config: remote.NoConfig, AgentSocket: serveAgent(t, readKey(t, s.IdentityFile)), Answers: remote.NewAnswers(p)})
	dial(t, d, target)
	if p.count() != 0 {
		t.Errorf("asked %q", p.asked)
	}
}

// code is a login with a password and an unpredictable code.
func code(user string, challenge ssh.KeyboardInteractiveChallenge) error {
	got, err := challenge("", "", []string{"Password: "}, []bool{false})
	if err != nil || len(got) != 1 || got[0] != "secret" {
		return fmt.Errorf("password: %v %w", got, err)
	}
	got, err = challenge("Second factor", "Look at\rtoken 7", []string{"Code for " + user + ": ", "PIN: "}, []bool{true, false})
	if err != nil || len(got) != 2 || got[0] != "123456" || got[1] != "0000" {
		return fmt.Errorf("code: %v %w", got, err)
	}
	_, err = challenge("", "welcome", nil, nil)
	return err
}

// knows answers the questions of code. ssh does not say whether an answer may be shown.
func (w way) knows(ctx context.Context, question string, echo bool) (string, error) {
	for ends, answer := range map[string]string{"Password: ": "secret", "password: ": "secret", "Code for train: ": "123456", "PIN: ": "0000"} {
		if strings.HasSuffix(question, ends) && (w == byOpenSSH || echo == (ends == "Code for train: ")) {
			return answer, nil
		}
	}
	return "", fmt.Errorf("what is %q?", question)
}

// dsbuild asks for a jump host's one-time code once, for all nodes behind it.
func TestCodeOfAJumpHost(t *testing.T) { testCodeOfAJumpHost(t, native) }

func testCodeOfAJumpHost(t *testing.T, by way) {
	for _, afterKey := range []bool{false, true} {
		bastion := sshtest.Start(t, sshtest.Options{Ask: code, AfterKey: afterKey, RefuseAuth: !afterKey})
		host := bastion.Target() // with its own identity, otherwise it gets each node's
		var targets []remote.Target
		for range 6 {
			target := sshtest.Start(t, sshtest.Options{}).Target()
			target.Jump = []remote.Target{host}
			targets = append(targets, target)
		}
		p := &person{answer: by.knows}
		for _, err := range all(t, by.attended(p), targets) {
			if err != nil {
				t.Error(err)
			}
		}
		from := fmt.Sprintf("jump host train@127.0.0.1:%d", bastion.Port)
		want := []string{
			from + ": Password: ",
			"message from " + from + ":\n  | Second factor\n  | Look at\n  | token 7\n" + from + ": Code for train: ",
			from + ": PIN: ",
		}
		if strings.Join(p.asked, "\x00") != strings.Join(want, "\x00") {
			t.Errorf("asked %q, want %q", p.asked, want)
		}
		if bastion.Connections() != 1 || bastion.Denied() != 0 {
			t.Errorf("%d connections to the jump host, %d answers were wrong", bastion.Connections(), bastion.Denied())
		}
	}
}

// The user types a password once, and dsbuild gives it to no other node before one has accepted
// it. It asks for codes at each node, one after the other.
func TestPasswordOfNodes(t *testing.T) { testPasswordOfNodes(t, native) }

func testPasswordOfNodes(t *testing.T, by way) {
	var targets []remote.Target
	var servers []*sshtest.Server
	for i := range 6 {
		opt := sshtest.Options{Password: "secret"}
		if i%2 == 1 {
			opt = sshtest.Options{Ask: code}
		}
		s := sshtest.Start(t, opt)
		servers = append(servers, s)
		targets = append(targets, keyless(s))
	}
	p := &person{answer: by.knows}
	for _, err := range all(t, by.attended(p), targets) {
		if err != nil {
			t.Error(err)
		}
	}
	if p.count() != 1+3*2 {
		t.Errorf("asked %q", p.asked)
	}
	for i, s := range servers {
		if s.Connections() != 1 || s.Denied() != 0 {
			t.Errorf("node %d: %d connections, %d wrong answers", i, s.Connections(), s.Denied())
		}
	}
}

func TestOtherPasswordOfOneNode(t *testing.T) { testOtherPasswordOfOneNode(t, native) }

func testOtherPasswordOfOneNode(t *testing.T, by way) {
	first, odd := sshtest.Start(t, sshtest.Options{Password: "secret"}), sshtest.Start(t, sshtest.Options{Password: "other", Name: "gpu07"})
	p := inTurn("secret", "other")
	d := by.attended(p)
	dial(t, d, keyless(first))
	dial(t, d, keyless(odd))
	if odd.Denied() != 1 || odd.Connections() != 1 {
		t.Errorf("%d wrong answers over %d connections", odd.Denied(), odd.Connections())
	}
	if want := fmt.Sprintf("gpu07 (train@127.0.0.1:%d): password: ", odd.Port); p.asked[1] != want {
		t.Errorf("asked %q, want %q", p.asked[1], want)
	}
	dial(t, d, keyless(first)) // the password for the others is still valid
}

// dsbuild gives a refused password to no other node, and does not ask for it again.
func TestWrongPasswordStaysWithOneNode(t *testing.T) { testWrongPasswordStaysWithOneNode(t, native) }

func testWrongPasswordStaysWithOneNode(t *testing.T, by way) {
	var targets []remote.Target
	var servers []*sshtest.Server
	for range 5 {
		s := sshtest.Start(t, sshtest.Options{Password: "secret"})
		servers = append(servers, s)
		targets = append(targets, keyless(s))
	}
	p := says("a slip")
	d := by.attended(p)
	for _, err := range all(t, d, targets) {
		wantError(t, err, remote.ErrAuth, "tried a password or code; the node accepts password|password rejected by .*; not tried on other nodes", "")
	}
	denied, tried := 0, 0
	for _, s := range servers {
		denied += s.Denied()
		if s.Denied() > 0 {
			tried++
		}
	}
	if p.count() != 3 || denied != 3 || tried != 1 {
		t.Errorf("asked %d times; %d wrong answers on %d nodes", p.count(), denied, tried)
	}
}

// The login's time limit does not run while a person thinks.
func TestThinkingTakesNoTime(t *testing.T) { testThinkingTakesNoTime(t, native) }

func testThinkingTakesNoTime(t *testing.T, by way) {
	t.Parallel()
	opt := by.options(remote.Options{Config: remote.NoConfig, Timeout: 2 * time.Second})
	opt.Answers = remote.NewAnswers(&person{answer: func(context.Context, string, bool) (string, error) {
		time.Sleep(opt.Timeout + 500*time.Millisecond)
		return "secret", nil
	}})
	d := remote.NewSSH(opt)
	var targets []remote.Target
	for range 4 { // logins that wait for the first have time too
		targets = append(targets, keyless(sshtest.Start(t, sshtest.Options{Password: "secret"})))
	}
	for _, err := range all(t, d, targets) {
		if err != nil {
			t.Error(err)
		}
	}
	stalled := sshtest.Start(t, sshtest.Options{StallOnAccept: true})
	_, err := d.Dial(t.Context(), keyless(stalled))
	wantError(t, err, remote.ErrDial, "SSH handshake with .* timed out after "+opt.Timeout.String(), "")
}

// A question ends when the run or the node no longer needs the answer.
func TestQuestionEnds(t *testing.T) {
	began := make(chan struct{}, 1)
	ended := make(chan error, 1)
	silent := &person{answer: func(ctx context.Context, _ string, _ bool) (string, error) {
		began <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return "", ctx.Err()
	}}
	bastion := sshtest.Start(t, sshtest.Options{Password: "secret"})
	behind := sshtest.Start(t, sshtest.Options{}).Target()
	behind.Jump = []remote.Target{keyless(bastion)}
	for name, target := range map[string]remote.Target{"node": keyless(bastion), "jump host": behind} {
		d := native.attended(silent)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := d.Dial(ctx, target)
			done <- err
		}()
		<-began
		cancel()
		for _, c := range []chan error{done, ended} {
			select {
			case err := <-c:
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%s: %v", name, err)
				}
			case <-time.After(time.Minute):
				t.Fatalf("%s: still asking", name)
			}
		}
		go func() {
			_, err := d.Dial(t.Context(), target)
			done <- err
		}()
		<-began
		bastion.Cut()
		select {
		case err := <-done:
			wantError(t, err, remote.ErrDial, "connection closed before the prompt was answered", "LoginGraceTime")
		case <-time.After(time.Minute):
			t.Fatalf("%s: still waiting", name)
		}
		<-ended
	}
}

// If nobody can be asked, the error says so at once.
func TestNobodyToAsk(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{Password: "secret"})
	_, err := native.quick().Dial(t.Context(), keyless(s))
	wantError(t, err, remote.ErrAuth, "no usable SSH key for", "")
	target := s.Target()
	other := sshtest.Start(t, sshtest.Options{})
	target.IdentityFiles = []string{other.IdentityFile}
	_, err = native.quick().Dial(t.Context(), target)
	wantError(t, err, remote.ErrAuth, "the node accepts publickey, password|the node accepts password, publickey", "from a terminal to answer")

	for _, config := range []string{"BatchMode yes", "PasswordAuthentication no\nKbdInteractiveAuthentication no"} {
		p := says("secret")
		file := filepath.Join(t.TempDir(), "config")
		if err := os.WriteFile(file, []byte("Host *\n"+config+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		d := remote.NewSSH(remote.Options{Config: file, AgentSocket: "none", Answers: remote.NewAnswers(p)})
		_, err := d.Dial(t.Context(), target)
		if !errors.Is(err, remote.ErrAuth) || p.count() != 0 {
			t.Errorf("%s: %v, asked %q", config, err, p.asked)
		}
	}
	// dsbuild does not ask a person again who has left.
	left := &person{answer: func(context.Context, string, bool) (string, error) { return "", errors.New("he has left") }}
	d := native.attended(left)
	for range 3 {
		_, err := d.Dial(t.Context(), keyless(s))
		wantError(t, err, remote.ErrAuth, "he has left", "")
	}
	if left.count() != 1 {
		t.Errorf("asked %d times", left.count())
	}
}

// At most eight logins run at one sshd at the same time.
func TestLoginsAbreast(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int64
	s := sshtest.Start(t, sshtest.Options{Ask: func(_ string, challenge ssh.KeyboardInteractiveChallenge) error {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(20 * time.Millisecond)
		_, err := challenge("", "", nil, nil)
		return err
	}})
	targets := make([]remote.Target, 40)
	for i := range targets {
		targets[i] = keyless(s)
	}
	for _, err := range all(t, native.attended(says("")), targets) {
		if err != nil {
			t.Error(err)
		}
	}
	if most.Load() > 8 {
		t.Errorf("%d at once", most.Load())
	}
}

// sshd announces that it has banned a client, or has no room for it.
func TestBannedAndTurnedAway(t *testing.T) { testBannedAndTurnedAway(t, native) }

func testBannedAndTurnedAway(t *testing.T, by way) {
	banned := sshtest.Start(t, sshtest.Options{Refuse: "Not allowed at this time"})
	behind := sshtest.Start(t, sshtest.Options{}).Target()
	behind.Jump = []remote.Target{banned.Target()}
	d := by.trying(3)
	_, err := d.Dial(t.Context(), banned.Target())
	wantError(t, err, remote.ErrBanned, `: "Not allowed at this time"`, "PerSourcePenaltyExemptList")
	if banned.Connections() != 1 {
		t.Errorf("%d connections to one who has banned us", banned.Connections())
	}
	for range 3 {
		_, err = d.Dial(t.Context(), behind)
		wantError(t, err, remote.ErrBanned, "^jump host", "")
	}
	if banned.Connections() != 2 {
		t.Errorf("%d connections to a jump host that has banned us", banned.Connections()-1)
	}
	crowded := sshtest.Start(t, sshtest.Options{Refuse: "Exceeded MaxStartups"})
	_, err = d.Dial(t.Context(), crowded.Target())
	wantError(t, err, remote.ErrDial, "closed during SSH handshake: node reported: Exceeded MaxStartups", "MaxStartups")
	if errors.Is(err, remote.ErrBanned) || crowded.Connections() != 5 {
		t.Errorf("%v after %d connections", err, crowded.Connections())
	}
}

var secrets = regexp.MustCompile(`secret|123456`)

// The password of a jump host goes to no node behind it, and a node's to no jump host.
func TestPasswordsOfJumpHostAndNode(t *testing.T) {
	bastion := sshtest.Start(t, sshtest.Options{Password: "of the jump host"})
	s := sshtest.Start(t, sshtest.Options{Password: "of the node"})
	target := keyless(s)
	target.Jump = []remote.Target{keyless(bastion)}
	p := &person{answer: func(_ context.Context, question string, _ bool) (string, error) {
		if strings.Contains(question, "jump host") {
			return "of the jump host", nil
		}
		return "of the node", nil
	}}
	dial(t, native.attended(p), target)
	if p.count() != 2 || bastion.Denied() != 0 || s.Denied() != 0 {
		t.Errorf("asked %q; %d wrong answers to the jump host, %d to the node", p.asked, bastion.Denied(), s.Denied())
	}
}

// Errors never contain a typed secret.
func TestSecretsStaySecret(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{Password: "right"})
	_, err := native.attended(says("secret")).Dial(t.Context(), keyless(s))
	if err == nil || secrets.MatchString(err.Error()+fault.Hint(err)) {
		t.Errorf("got %v", err)
	}
}
