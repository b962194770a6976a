package remote

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
)

// SudoLimit is the default limit on the time sudo may take to run a command or to ask for a
// password.
const SudoLimit = 30 * time.Second

// WithSudo returns a Dialer whose connections do everything through sudo, as the user in
// Target.Sudo. Targets without one get d's own connections. The login user's password is prompted for
// once and sent only to sudo. Another user's password is prompted for per node. If sudo neither asks
// for a password nor runs a command within limit, Dial fails.
func WithSudo(d Dialer, answers *Answers, limit time.Duration) Dialer {
	return &sudoDialer{d, answers, limit}
}

type sudoDialer struct {
	Dialer
	answers *Answers
	limit   time.Duration
}

// Dial implements Dialer. It tests sudo immediately, so that a failing sudo is an ErrSudo of Dial.
func (d *sudoDialer) Dial(ctx context.Context, t Target) (Conn, error) {
	inner, err := d.Dialer.Dial(ctx, t)
	if err != nil || t.Sudo == "" {
		return inner, err
	}
	c := &sudoConn{Conn: inner, dialer: d.Dialer, target: t, answers: d.answers}
	if err := c.try(ctx, d.limit); err != nil {
		inner.Close() //nolint:errcheck // the connection is useless without sudo
		return nil, err
	}
	return c, nil
}

// sudoConn is a connection on which everything runs as another user.
type sudoConn struct {
	Conn
	dialer   Dialer // the dialer that opened the connection
	target   Target
	answers  *Answers
	password string // the accepted password, or "" if sudo asked for none
}

// try runs a command that does nothing through sudo, to find the password that sudo accepts.
func (c *sudoConn) try(ctx context.Context, limit time.Duration) error {
	clock := newDeadline(ctx, limit)
	defer clock.end()
	a := &sudoLogin{conn: c, clock: clock}
	limited, over, flooded, end := bounded(clock)
	defer end()
	s, err := c.session(Command{Argv: []string{"true"}, Stdout: NewAnswer(over), Stderr: NewAnswer(over)}, a.password)
	if err != nil {
		return err
	}
	err = flooded(s.run(limited))
	if ctx.Err() == nil && clock.expired() {
		err = nodeerr.Errorf("%w on %s: timed out after %s with output %q",
			ErrSudo, nodeerr.Own(c.target.Name), limit, s.said())
		err = fault.WithHint(err,
			"check what sudo prompts for on the node: sudo -u %s true", c.target.Sudo)
	}
	var wrong error
	if errors.Is(err, ErrSudo) && !notSudoer.MatchString(err.Error()) {
		wrong = nodeerr.Errorf("password rejected by sudo on %s; not tried on other nodes", nodeerr.Own(a.conn.target.Name))
	}
	a.trial.end(err, wrong)
	if err == nil {
		c.password = a.text
	}
	return err
}

// Run implements Runner.
func (c *sudoConn) Run(ctx context.Context, cmd Command) error {
	asked := false
	s, err := c.session(cmd, func(context.Context, string) (string, error) {
		if asked || c.password == "" {
			return "", errors.New("second password prompt from sudo")
		}
		asked = true
		return c.password, nil
	})
	if err != nil {
		return err
	}
	return s.run(ctx)
}

// Put implements Conn. SFTP runs as the login user, so a program of the other user receives the file.
func (c *sudoConn) Put(ctx context.Context, up Upload) error {
	return PutByProgram(ctx, c, c.target.Sudo, up)
}

// unexpanded stands in a prompt for the user whose password sudo wants. sudo-rs does not expand it, and wants the login user's.
const unexpanded = "%p"

// sudoSession is one command run by sudo. The script prints a mark just before the program begins.
// Before the mark, stderr comes from sudo and stdin goes to sudo. After the mark, both belong to
// the program.
type sudoSession struct {
	conn     *sudoConn
	cmd      Command
	password func(ctx context.Context, of string) (string, error)
	line     Command
	ask, on  string // marks: sudo asks for a password; the program begins
	input    *sudoInput

	ctx       context.Context // the context of run
	answering sync.WaitGroup

	mu    sync.Mutex
	begun bool
	bound Limiter // of the output before the program begins
	buf   []byte  // output not yet sorted
	words []byte  // sudo's messages
	wrong error   // the reason why sudo got no password
}

// Limits on sudo's output in bytes: on the kept part, and on all of it.
const (
	maxWords  = 16 << 10
	maxBefore = 1 << 20
)

func (c *sudoConn) session(cmd Command, password func(context.Context, string) (string, error)) (*sudoSession, error) {
	program, err := programLine(cmd)
	if err != nil {
		return nil, err
	}
	input := &sudoInput{program: cmd.Stdin}
	input.cond = sync.NewCond(&input.mu)
	s := &sudoSession{
		conn: c, cmd: cmd, password: password, input: input,
		ask: "[sudo " + rand.Text() + " ", on: rand.Text() + "\n",
	}
	// The program starts in the home folder if it can, as after a login.
	script, err := checkLine(`cd "${HOME:-/}" 2>/dev/null || cd /; ` +
		"echo " + s.on[:len(s.on)-1] + " >&2\n" + setupLine(cmd.Setup) + "exec " + program)
	if err != nil {
		return nil, err
	}
	how := []string{"-n"}
	if c.answers.attended(c.target) {
		how = []string{"-S", "-p", s.ask + unexpanded + "]"}
	}
	// sudo's messages are compared, so they must not be in the language of the login.
	argv := append([]string{"/bin/sh", "-c", `LANGUAGE=C; export LANGUAGE; exec sudo "$@"`, "sh"}, how...)
	argv = append(argv, "-H", "-u", c.target.Sudo, "--", "/bin/sh", "-c", script)
	s.line = Command{Argv: argv, About: cmd.About, Stdin: s.input, Stdout: cmd.Stdout, Stderr: s}
	return s, nil
}

// run runs the command until it ends.
func (s *sudoSession) run(ctx context.Context) error {
	asking, over, flooded, cancel := bounded(ctx)
	s.ctx, s.bound = asking, Limiter{Most: maxBefore, OnExceed: over}
	err := flooded(s.conn.Conn.Run(asking, s.line))
	cancel()
	s.answering.Wait()
	s.input.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	var exit *ExitError
	if s.begun || !errors.As(err, &exit) {
		return err
	}
	return s.refused(exit)
}

// Write implements io.Writer. It receives the stderr of sudo and of the program.
func (s *sudoSession) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun {
		return s.pass(b)
	}
	s.bound.Count(len(b))
	s.buf = append(s.buf, b...)
	for !s.begun {
		prompt, begin := bytes.Index(s.buf, []byte(s.ask)), bytes.Index(s.buf, []byte(s.on))
		end := -1
		if prompt >= 0 {
			end = bytes.IndexByte(s.buf[prompt:], ']')
		}
		switch {
		case begin >= 0 && (prompt < 0 || begin < prompt):
			s.keep(s.buf[:begin])
			s.begun = true
			s.input.begin()
		case end >= 0:
			s.keep(s.buf[:prompt])
			of := string(s.buf[prompt+len(s.ask) : prompt+end])
			s.buf = s.buf[prompt+end+1:]
			s.answering.Go(func() { s.answer(of) })
			continue
		default:
			if len(s.buf) > maxWords {
				s.keep(s.buf[:len(s.buf)-len(s.ask)-1])
				s.buf = s.buf[len(s.buf)-len(s.ask)-1:]
			}
			return len(b), nil
		}
		rest := s.buf[begin+len(s.on):]
		s.buf = nil
		if _, err := s.pass(rest); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// pass writes the program's output to the caller's stderr.
func (s *sudoSession) pass(b []byte) (int, error) {
	if s.cmd.Stderr == nil || len(b) == 0 {
		return len(b), nil
	}
	return s.cmd.Stderr.Write(b)
}

func (s *sudoSession) keep(b []byte) {
	s.words = append(s.words, b[:min(len(b), maxWords-len(s.words))]...)
}

// answer sends a user's password to sudo. Without one it closes sudo's input, and sudo gives up.
func (s *sudoSession) answer(of string) {
	text, err := s.password(s.ctx, of)
	if err != nil {
		s.mu.Lock()
		s.wrong = err
		s.mu.Unlock()
		s.input.end()
		return
	}
	s.input.give(text)
}

// said returns sudo's error message.
func (s *sudoSession) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last()
}

func (s *sudoSession) last() string {
	lines := strings.Split(strings.TrimSpace(string(s.words)+string(s.buf)), "\n")
	what := lines[len(lines)-1]
	for _, line := range lines { // the first error is the cause of the later ones
		if strings.HasPrefix(line, "sudo: ") {
			what = strings.TrimPrefix(line, "sudo: ")
			break
		}
	}
	return clip(strings.TrimSpace(what), maxPrompt)
}

// refused returns the error of a command that did not start.
func (s *sudoSession) refused(exit *ExitError) error {
	s.keep(s.buf)
	s.buf = nil
	t, said := s.conn.target, s.last()
	if s.wrong != nil {
		return nodeerr.Errorf("%w on %s: %w", ErrSudo, nodeerr.Own(t.Name), s.wrong)
	}
	err := nodeerr.Errorf("%w on %s: %s", ErrSudo, nodeerr.Own(t.Name), reported(said))
	if said == "" {
		err = nodeerr.Errorf("%w on %s: %w", ErrSudo, nodeerr.Own(t.Name), exit)
	}
	for _, known := range sudoAdvice {
		if known.message.Match(s.words) {
			text := strings.NewReplacer("RUNAS", t.Sudo, "LOGIN", cmp.Or(t.User, "USER")).Replace(known.advice)
			return fault.WithHint(err, "%s", text)
		}
	}
	return fault.WithHint(err, "run on the node: sudo -u %s true", t.Sudo)
}

// notSudoer matches sudo's messages that a user may not run the command. The password may be right.
var notSudoer = regexp.MustCompile(`not in the sudoers|not allowed to|may not run|I'm afraid I can't do that`)

// sudoAdvice maps sudo's error messages to advice for the user.
var sudoAdvice = []struct {
	message *regexp.Regexp
	advice  string
}{
	{regexp.MustCompile(`password is required`), "run dsbuild from a terminal to enter it, or add NOPASSWD for LOGIN to the node's sudoers"},
	{regexp.MustCompile(`authentication is required`), "run dsbuild from a terminal to enter the password, or add NOPASSWD for LOGIN to the node's sudoers"},
	{notSudoer, "add to the node's sudoers: LOGIN ALL=(RUNAS) NOPASSWD: ALL"},
	{regexp.MustCompile(`must have a tty`), "add to the node's sudoers: Defaults:LOGIN !requiretty"},
	{regexp.MustCompile(`unknown user|user '`), fault.Set("sudo", "a user of the node, or to true for root").String()},
	{regexp.MustCompile(`not found`), "install sudo on the node, or " + fault.Set("sudo", "false").String()},
}

// sudoLogin asks for the password that a node's sudo wants.
type sudoLogin struct {
	conn  *sudoConn
	clock *deadline
	trial *secretTrial
	text  string
	asked int
}

// login returns the login user, or "" if it is not known here.
func (c *sudoConn) login(ctx context.Context) string {
	if c.target.User != "" {
		return c.target.User
	}
	d, ok := c.dialer.(*SSH)
	if !ok {
		return ""
	}
	t, err := d.Resolve(ctx, c.target)
	if err != nil {
		return ""
	}
	return t.User
}

// password returns the password of a user. A password accepted by another node's sudo is offered once,
// and only as the login user's password: the node chooses the user it asks for, and must not get other
// users' passwords that way.
func (a *sudoLogin) password(ctx context.Context, of string) (string, error) {
	defer a.clock.hold()()
	answers, t := a.conn.answers, a.conn.target
	if of == unexpanded {
		of = cmp.Or(a.conn.login(ctx), of)
	}
	ask := func() (string, error) {
		if a.asked++; a.asked > rounds {
			return "", fmt.Errorf("incorrect password for %s", of)
		}
		return answers.ask(ctx, question(t.Name, "", "sudo password for "+of+":"), false)
	}
	var err error
	if a.trial != nil || of == a.conn.login(ctx) {
		a.text, err = answers.askSecret(ctx, &a.trial, "password of "+of+" for sudo", ask)
	} else {
		a.text, err = ask()
	}
	return a.text, err
}

// sudoInput is the input of sudo and then of the program. sudo gets a password when it asks for
// one, and nothing else. The program gets its own input.
type sudoInput struct {
	program io.Reader

	mu    sync.Mutex
	cond  *sync.Cond
	typed []byte
	begun bool
	ended bool
}

// give passes a line to sudo.
func (s *sudoInput) give(text string) {
	s.change(func() { s.typed = append(append(s.typed, text...), '\n') })
}

// begin opens the input for the program.
func (s *sudoInput) begin() { s.change(func() { s.begun = true }) }

// end ends the input for both.
func (s *sudoInput) end() { s.change(func() { s.ended = true }) }

// change makes a change and wakes the reader.
func (s *sudoInput) change(by func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	by()
	s.cond.Broadcast()
}

// Read implements io.Reader.
func (s *sudoInput) Read(b []byte) (int, error) {
	s.mu.Lock()
	for len(s.typed) == 0 && !s.begun && !s.ended {
		s.cond.Wait()
	}
	if n := copy(b, s.typed); n > 0 {
		s.typed = s.typed[n:]
		s.mu.Unlock()
		return n, nil
	}
	over := s.ended || s.program == nil
	s.mu.Unlock()
	if over {
		return 0, io.EOF
	}
	return s.program.Read(b)
}
