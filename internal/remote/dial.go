package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
)

// Options are the settings of an SSH dialer. The zero value behaves like ssh at a terminal.
type Options struct {
	// Config is the OpenSSH client configuration. If empty, it is ~/.ssh/config and
	// /etc/ssh/ssh_config. NoConfig means none.
	Config string
	// AgentSocket is the agent's socket. If empty, it is the client configuration's
	// IdentityAgent or else $SSH_AUTH_SOCK. "none" means no agent.
	AgentSocket string
	// Timeout limits one hop: TCP, key exchange and authentication. 0 means 20 s.
	Timeout time.Duration
	// KeepAlive is the keepalive interval for an unresponsive node. Zero means 5 s.
	KeepAlive time.Duration
	// KeepAliveMax is the number of intervals without data after which a connection is lost. Zero
	// means 3.
	KeepAliveMax int
	// Backoff is half of the first pause before a retry; each further pause is twice as long. Zero
	// means 500 ms.
	Backoff time.Duration
	// MaxAttempts limits the attempts to open a connection. Zero means one attempt. Rejected keys,
	// unknown hosts and timeouts are final: retrying a timeout would hold up all other nodes.
	MaxAttempts int
	// Client selects the SSH implementation. The default is Auto.
	Client Client
	// Askpass is the program through which ssh prompts for passwords. It must call Askpass when it
	// starts. If it is empty, ssh does not prompt.
	Askpass string
	// Note shows a message to the user. It may be nil.
	Note func(text string)
	// Answers prompts for passphrases, passwords and one-time passwords. If it is nil, there are no prompts.
	Answers *Answers
}

// SSH opens connections over SSH. Targets that share a jump host share one
// connection to it. It is safe for use by many goroutines.
type SSH struct {
	opt      Options
	config   *clientConfig
	hostKeys *hostKeys
	jumps    *jumpConns
	logins   *loginLimiter
	openSSH  func() (string, error) // finds the ssh to run
	ignored  sync.Map               // ignored settings that were already reported
	sessions sync.Map               // *atomic.Int64: the open ones through each of the user's masters, by socket
}

var _ Dialer = (*SSH)(nil)

// NewSSH returns a dialer with the given options.
func NewSSH(opt Options) *SSH {
	opt.Timeout = cmp.Or(opt.Timeout, 20*time.Second)
	opt.KeepAlive = cmp.Or(opt.KeepAlive, 5*time.Second)
	opt.KeepAliveMax = cmp.Or(opt.KeepAliveMax, 3)
	opt.Backoff = cmp.Or(opt.Backoff, 500*time.Millisecond)
	if opt.Answers == nil {
		opt.Answers = NewAnswers(nil)
	}
	if opt.Note == nil {
		opt.Note = func(string) {}
	}
	return &SSH{
		openSSH:  sync.OnceValues(func() (string, error) { return FindOpenSSH(context.Background()) }),
		opt:      opt,
		config:   newClientConfig(opt.Config, opt.Note),
		hostKeys: &hostKeys{},
		jumps:    &jumpConns{open: map[string]*jumpConn{}},
		logins:   &loginLimiter{servers: map[string]chan struct{}{}},
	}
}

// Dial resolves t and opens a connection to it, through its jump hosts if it has any.
func (d *SSH) Dial(ctx context.Context, t Target) (Conn, error) {
	t, err := d.Resolve(ctx, t)
	if err != nil {
		return nil, err
	}
	c, err := d.dialNode(ctx, t)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// dialNode connects to a resolved target. If the node allows few sessions, the connection opens additional
// connections.
func (d *SSH) dialNode(ctx context.Context, t Target) (*sshConn, error) {
	c, err := d.dialRetry(ctx, d.opt.MaxAttempts, func() (*sshConn, error) { return d.dial(ctx, t) }, func(err error) bool {
		return !errors.As(err, new(throttledError)) && !errors.As(err, new(timeoutError)) &&
			(errors.Is(err, ErrDial) || errors.Is(err, ErrLost))
	})
	if err == nil {
		t.ControlPaths = []string{} // the user's master is at the same limit
		c.redial = func(ctx context.Context) (*sshConn, error) { return d.dialNode(ctx, t) }
	}
	return c, err
}

// dialRetry calls dial up to tries times, backing off exponentially, while retryable(err).
func (d *SSH) dialRetry(
	ctx context.Context, tries int, dial func() (*sshConn, error), retryable func(error) bool,
) (*sshConn, error) {
	next := 2 * d.opt.Backoff // a second by default
	for n := 1; ; n++ {
		c, err := dial()
		if err == nil || n >= tries || !retryable(err) {
			return c, err
		}
		if err := pause(ctx, jitter(next)); err != nil {
			return nil, err
		}
		next *= 2
	}
}

// timeoutError is an ErrDial: the node did not respond in time.
type timeoutError struct{ error }

// Unwrap returns the error without the mark.
func (e timeoutError) Unwrap() error { return e.error }

// Is makes errors.Is report ErrDial.
func (timeoutError) Is(target error) bool { return target == ErrDial } //nolint:errorlint // Is itself

// dial connects to a resolved target. It calls itself for jump hosts.
func (d *SSH) dial(ctx context.Context, t Target) (*sshConn, error) {
	if t.openSSH {
		return d.dialOpenSSH(ctx, t)
	}
	if d.opt.Client != Native && !t.jump && t.hasMaster() { // though t does not need OpenSSH otherwise
		if program, err := d.openSSH(); err == nil {
			if c := d.dialUserMaster(ctx, program, t); c != nil {
				return c, nil
			}
		}
	}
	keys, err := d.keysFor(ctx, t)
	if err != nil {
		return nil, err
	}
	defer keys.close()
	hop := func(ctx context.Context, network, addr string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, cmp.Or(t.family, network), addr)
	}
	jump, release, err := d.jumpTo(ctx, t, "", d.dial)
	if err != nil {
		return nil, err
	}
	if jump != nil {
		hop = jump.client.DialContext
	}
	c, err := d.connect(ctx, t, func(clock *deadline) (*sshConn, error) { return d.reach(clock, t, hop, keys) })
	if err != nil {
		release()
		return nil, err
	}
	c.release = release
	return c, nil
}

// jumpTo returns the connection to the last jump host of t, or nil without jump hosts. It calls dial unless such
// a connection is already open.
func (d *SSH) jumpTo(
	ctx context.Context, t Target, kind string, dial func(context.Context, Target) (*sshConn, error),
) (*sshConn, func(), error) {
	if len(t.Jump) == 0 {
		return nil, func() {}, nil
	}
	last := t.lastJump()
	jump, release, err := d.jumps.get(ctx, kind+jumpKey(t.Jump), func(ctx context.Context) (*sshConn, error) {
		return dial(ctx, last)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("jump host %s: %w", last.Address, err)
	}
	return jump, release, nil
}

type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// dialAttempts is the number of connection attempts to a node that throttles, which sshd does
// before authentication and does not treat as a failed login.
const dialAttempts = 5

// connect opens one hop. It calls attempt, and retries while the node throttles.
func (d *SSH) connect(ctx context.Context, t Target, attempt func(*deadline) (*sshConn, error)) (*sshConn, error) {
	once := func() (*sshConn, error) {
		leave, err := d.logins.acquire(ctx, jumpKey(t.Jump)+hostPort(t))
		if err != nil {
			return nil, err
		}
		defer leave()
		clock := newDeadline(ctx, d.opt.Timeout)
		defer clock.end()
		c, err := attempt(clock)
		if err != nil && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return c, err
	}
	return d.dialRetry(ctx, dialAttempts, once, func(err error) bool { return errors.As(err, new(throttledError)) })
}

// reach opens the TCP connection and runs the handshake.
func (d *SSH) reach(clock *deadline, t Target, dial dialFunc, keys *keySet) (*sshConn, error) {
	nc, err := dial(clock, "tcp", hostPort(t))
	switch {
	case err == nil:
	case clock.expired():
		return nil, dialError(t, context.DeadlineExceeded)
	default:
		return nil, dialError(t, err)
	}
	c, err := d.handshake(clock, nc, t, keys)
	if err == nil {
		return c, nil
	}
	nc.Close()
	if clock.expired() {
		return nil, d.unfinished(t)
	}
	return nil, err
}

// unfinished returns the error of a handshake that took too long.
func (d *SSH) unfinished(t Target) error {
	err := nodeerr.Errorf("SSH handshake with %s timed out after %s", nodeerr.Own(hostPort(t)), d.opt.Timeout)
	return fault.WithHint(timeoutError{err},
		"check that sshd listens on port %d and the node is not overloaded: ssh -v -p %[1]d %s@%s", t.Port, t.User, t.Address)
}

// handshake runs the SSH handshake over nc. ssh.ClientConfig.Timeout would not limit it, so
// handshake closes nc at the deadline. Through a jump host even that may not wake the reader at
// once, so handshake does not wait for the reader.
func (d *SSH) handshake(clock *deadline, nc net.Conn, t Target, keys *keySet) (*sshConn, error) {
	check, err := d.hostKeys.checker(t)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(clock, func() { nc.Close() })()
	alive := newAliveConn(nc)
	// Prompts end when the node closes the connection.
	asking, stop := context.WithCancelCause(clock)
	defer stop(nil)
	alive.ended = func() { stop(errClosedByNode) }
	login := &login{target: t, keys: keys, answers: d.opt.Answers, ctx: asking, clock: clock}
	if keys.unlock != nil {
		keys.unlock = login.unlock
	}
	cfg := &ssh.ClientConfig{
		User:              t.User,
		HostKeyCallback:   check.callback,
		HostKeyAlgorithms: check.algorithms,
		ClientVersion:     "SSH-2.0-dsbuild",
		AuthCallback:      login.next,
		BannerCallback:    login.banner,
	}
	cfg.KeyExchanges = allowedOf(ownKex(), t.allowed.kex)
	cfg.Ciphers = allowedOf(ssh.SupportedAlgorithms().Ciphers, t.allowed.ciphers)
	cfg.MACs = allowedOf(ownMACs(), t.allowed.macs)
	type result struct {
		conn *sshConn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		cc, chans, reqs, err := ssh.NewClientConn(alive, knownAs(t), cfg)
		if err != nil {
			err = handshakeError(t, err, check, login, alive)
			login.end(login.trial, err)
			done <- result{nil, err}
			return
		}
		login.end(login.trial, nil)
		client := ssh.NewClient(cc, chans, reqs)
		conn := newConn(t, client, alive, nil)
		go conn.keepAlive(d.opt.KeepAlive, d.opt.KeepAliveMax)
		done <- result{conn, nil}
	}()
	select {
	case r := <-done:
		return r.conn, r.err
	case <-clock.Done():
		go func() {
			if r := <-done; r.conn != nil {
				r.conn.Close()
			}
		}()
		return nil, clock.Err()
	}
}

func hostPort(t Target) string { return net.JoinHostPort(t.Address, strconv.Itoa(t.Port)) }

// knownAs returns t's name in known_hosts. ssh writes an alias there without a port.
func knownAs(t Target) string {
	if t.HostKeyAlias != "" {
		return net.JoinHostPort(t.HostKeyAlias, "22")
	}
	return hostPort(t)
}

// dialError explains why a TCP connection failed.
func dialError(t Target, err error) error {
	why := err
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		why = op.Err
	}
	if call := (*os.SyscallError)(nil); errors.As(err, &call) {
		why = call.Err
	}
	dns := (*net.DNSError)(nil)
	refused := (*ssh.OpenChannelError)(nil)
	switch {
	case tooManyFiles(err):
		return filesError(t, err)
	case errors.As(err, &dns) && !dns.IsNotFound:
		return lookupError(t, dns)
	case errors.As(err, &dns):
		return nameError(t, dns)
	case errors.As(err, &refused) && refused.Reason == ssh.Prohibited:
		return prohibitedError(t, refused.Message)
	case errors.As(err, &refused):
		return jumpError(t, reported(refused.Message))
	case errors.Is(err, errRefused):
		return refusedError(t)
	case errors.Is(err, context.DeadlineExceeded):
		return noAnswer(t)
	}
	return nodeerr.Errorf("%w to %s: %w", ErrDial, nodeerr.Own(hostPort(t)), why)
}

// Connection errors, the same for dsbuild's own SSH and for OpenSSH.

// set returns the setting that locates t.
func (t Target) set(key, to string) fault.Setting {
	if t.jump {
		return fault.Set("proxy_jump", "[USER@]HOST[:PORT], with "+to)
	}
	return fault.Set(key, to)
}

func lookupError(t Target, why error) error {
	return fault.WithHint(nodeerr.Errorf("%w to %s: name lookup failed: %w", ErrDial, nodeerr.Own(hostPort(t)), why),
		"check the name server (getent hosts %s), or %s", t.Address, t.set("address", "its IP address"))
}

func nameError(t Target, why error) error {
	return fault.WithHint(nodeerr.Errorf("%w to %s: cannot resolve host: %w", ErrDial, nodeerr.Own(hostPort(t)), why),
		"%s", t.set("address", "its IP address, or a name that resolves"))
}

func prohibitedError(t Target, why string) error {
	err := nodeerr.Errorf("%w to %s: forwarding denied by the jump host: %s", ErrDial, nodeerr.Own(hostPort(t)), reported(why))
	return fault.WithHint(err, "check AllowTcpForwarding and PermitOpen in the jump host's sshd_config, "+
		"and no-port-forwarding in its authorized_keys")
}

func jumpError(t Target, why string) error {
	err := nodeerr.Errorf("%w to %s from the jump host: %s", ErrDial, nodeerr.Own(hostPort(t)), why)
	return fault.WithHint(err, "test from the jump host: ssh -p %d %s@%s; its sshd_config needs AllowTcpForwarding yes",
		t.Port, t.User, t.Address)
}

func refusedError(t Target) error {
	return fault.WithHint(nodeerr.Errorf("%w to %s: connection refused", ErrDial, nodeerr.Own(hostPort(t))),
		"start sshd on port %d, or %s", t.Port, t.set("port", "the port of sshd"))
}

func noAnswer(t Target) error {
	return fault.WithHint(timeoutError{nodeerr.Errorf("connection to %s timed out", nodeerr.Own(hostPort(t)))},
		"check that the node is up and port %d is open", t.Port)
}

// throttledError marks a handshake that sshd ended before authentication, as it does beyond MaxStartups.
type throttledError struct{ error }

// Unwrap returns the error without the mark.
func (e throttledError) Unwrap() error { return e.error }

// errClosedByNode means that the node closed the connection while a prompt was open.
var errClosedByNode = errors.New("connection closed before the prompt was answered")

// handshakeError turns an error of ssh.NewClientConn into one of the sentinels.
func handshakeError(t Target, err error, check *hostKeyCheck, login *login, alive *aliveConn) error {
	if check.failed != nil {
		return check.failed
	}
	var neg *ssh.AlgorithmNegotiationError
	if errors.As(err, &neg) {
		if neg.What == "host key" {
			return check.otherType(neg.RequestedAlgorithms)
		}
		return algorithmError(t, neg.What, joinNames(neg.RequestedAlgorithms))
	}
	text := strings.TrimPrefix(err.Error(), "ssh: handshake failed: ")
	if m := disconnected.FindStringSubmatch(text); m != nil {
		text = m[1] + reported(m[2])
	}
	switch begun := login.offered.Load() != nil; {
	case errors.Is(login.gaveUp, errClosedByNode):
		return closedError(t)
	case begun && (login.gaveUp != nil || refusals.MatchString(text)):
		return login.withMessage(login.refused(text))
	case !begun && alive.said() == notAllowed:
		return bannedError(t)
	// Any other error before the login means that the message was malformed.
	case !begun && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || cut(err)):
		if said := alive.said(); said != "" {
			text = reported(said)
		}
		return throttledError{handshakeClosed(t, text)}
	}
	return login.withMessage(handshakeClosed(t, text))
}

// disconnected matches a node's message that it ends the connection.
var disconnected = regexp.MustCompile(`(?s)^(ssh: disconnect, reason \d+: )(.*)$`)

// maxReported is how many bytes of a node's text an error repeats.
const maxReported = 300

// reported marks a text as the node's, on one line.
func reported(text string) string {
	return nodeerr.Reported + clip(strings.Join(strings.Fields(text), " "), maxReported)
}

// algorithmName matches the names that a node may send (RFC 4251, section 6).
var algorithmName = regexp.MustCompile(`^[\w@.+-]{1,64}$`)

// joinNames lists names of algorithms or login methods that a node offers, without what is no name.
func joinNames(names []string) string {
	valid := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !algorithmName.MatchString(name) })
	return strings.Join(valid, ", ")
}

func algorithmError(t Target, what, offered string) error {
	err := nodeerr.Errorf("%w to %s: no common algorithm for %s (the node offers %s)",
		ErrDial, nodeerr.Own(hostPort(t)), what, offered)
	if !t.openSSH && strings.Contains(offered, "diffie-hellman-group-exchange-sha256") {
		return fault.WithHint(err, "use OpenSSH, which supports it: --ssh openssh")
	}
	limits := ""
	if len(t.allowed.kex)+len(t.allowed.ciphers)+len(t.allowed.macs) > 0 {
		limits = "; your own configuration limits them, too: ssh -G " + Quote(t.word())
	}
	return fault.WithHint(err, "dsbuild accepts neither SHA-1 nor CBC: "+
		"allow others with KexAlgorithms, MACs and Ciphers in the node's sshd_config "+
		"(list them: ssh -Q kex, ssh -Q mac, ssh -Q cipher)%s", limits)
}

func bannedError(t Target) error {
	return fault.WithHint(nodeerr.Errorf("%w: %s: %q", ErrBanned, nodeerr.Own(hostPort(t)), notAllowed),
		"find the failing logins from the control node and wait a few minutes, "+
			"or exempt it with PerSourcePenaltyExemptList in the node's sshd_config")
}

// handshakeClosed returns the error of a handshake that the node ended.
func handshakeClosed(t Target, why string) error {
	err := nodeerr.Errorf("%w to %s: connection closed during SSH handshake: %s", ErrDial, nodeerr.Own(hostPort(t)), why)
	return fault.WithHint(err, "check MaxStartups and the sshd log on %s", t.Address)
}

// closedError returns the error of a connection that the node closed while a prompt was open.
func closedError(t Target) error {
	return fault.WithHint(nodeerr.Errorf("%w to %s: %w", ErrDial, nodeerr.Own(hostPort(t)), errClosedByNode),
		"raise LoginGraceTime in the node's sshd_config")
}

// notAllowed is sshd's message to a client that it has banned for a while.
const notAllowed = "Not allowed at this time"

// refusals matches final authentication errors: no method is left, the node rejects the login, or no
// key can sign. A login whose connection merely broke may be retried, because a final error at a jump
// host fails every node behind it.
var refusals = regexp.MustCompile(`^ssh: unable to authenticate|(?i:too many authentication)|` +
	`^ssh: disconnect, reason 1[345]:|^agent: |no common public key signature algorithm`)
