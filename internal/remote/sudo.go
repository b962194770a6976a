package remote

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/hint"
)

// SudoLimit is how long sudo usually may take to run a command or to ask for a
// password.
const SudoLimit = 30 * time.Second

// WithSudo returns a Dialer whose connections do everything by sudo, as the user
// that the target names; those to targets without one are d's own. The password of the
// user that logs in is asked for once, and given to sudo alone; where a node's sudo wants
// another user's, it is asked for that node. A sudo that neither asks nor runs anything
// within limit has failed.
func WithSudo(d Dialer, answers *Answers, limit time.Duration) Dialer {
	return &sudoDialer{d, answers, limit}
}

type sudoDialer struct {
	Dialer
	answers *Answers
	limit   time.Duration
}

// Dial implements Dialer. A node on which sudo does not do as it should is an
// ErrSudo here, not in the middle of things.
func (d *sudoDialer) Dial(ctx context.Context, t Target) (Conn, error) {
	inner, err := d.Dialer.Dial(ctx, t)
	if err != nil || t.Sudo == "" {
		return inner, err
	}
	c := &sudoConn{Conn: inner, dialer: d.Dialer, target: t, answers: d.answers}
	if err := c.try(ctx, d.limit); err != nil {
		inner.Close() //nolint:errcheck // it is of no use
		return nil, err
	}
	return c, nil
}

// sudoConn is a connection to a node on which everything is done as another user.
type sudoConn struct {
	Conn
	dialer   Dialer // that made it
	target   Target
	answers  *Answers
	password string // that sudo has accepted; "" if it wanted none
}

// try runs a command that does nothing, and finds out what password sudo wants.
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
		err = fmt.Errorf("%w on %s: it ran no command within %s, and says %q", ErrSudo, c.target.Name, limit, s.said())
		err = hint.With(err, "does sudo there ask for something else than a password? Try there: sudo -u %s true", c.target.Sudo)
	}
	a.end(err)
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
			return "", errors.New("sudo asks for a password again")
		}
		asked = true
		return c.password, nil
	})
	if err != nil {
		return err
	}
	return s.run(ctx)
}

// Put implements Conn. SFTP is the login's, so a program of the other user's takes
// the file from its input; Upload.Sum and Upload.Write are not asked.
func (c *sudoConn) Put(ctx context.Context, up Upload) error {
	if err := up.Check(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	r, there := NewReceipt(up, c.target.Sudo), int64(0)
	if up.Resume {
		var err error
		if there, err = r.resume(ctx, c); err != nil {
			return err
		}
	}
	local, err := up.Open()
	if err != nil {
		return err
	}
	defer local.Close()
	if _, err := local.Seek(there, io.SeekStart); err != nil {
		return fmt.Errorf("reading the local file: %w", err)
	}
	if there > 0 && up.Progress != nil {
		up.Progress(there)
	}
	// One byte more than announced, so that a file that has grown shows.
	m := &meter{ctx: ctx, r: io.LimitReader(local, up.Size-there+1), limit: up.Limit, told: up.Progress}
	// When ctx ends no more is read, and the program tidies up.
	lasting, over, flooded, cancel := bounded(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(abortGrace, cancel) })()
	said, errs := NewAnswer(over), NewAnswer(over)
	cmd := r.Command("-")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &packets{m}, said, errs
	err = flooded(c.Run(lasting, cmd))
	var exit *ExitError
	switch {
	case ctx.Err() != nil && !errors.As(err, &exit):
		return fmt.Errorf("%w (%s may be left there)", ctx.Err(), r.Part)
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &exit):
		return r.Explain(ctx, exit, said.String(), errs.String())
	}
	return err
}

// packets reads no more at once than a limit of bytes per second can count.
type packets struct{ r io.Reader }

// Read implements io.Reader.
func (p *packets) Read(b []byte) (int, error) { return p.r.Read(b[:min(len(b), packet)]) }

// sudoSession is one command run by sudo. Before the program begins, what comes on
// stderr is sudo's and what goes to stdin is for sudo; behind a mark, that says so,
// both are the program's.
type sudoSession struct {
	conn     *sudoConn
	cmd      Command
	password func(ctx context.Context, of string) (string, error)
	line     Command
	ask, on  string // marks: sudo asks, the program begins
	input    *sudoInput

	ctx       context.Context // of run
	answering sync.WaitGroup

	mu    sync.Mutex
	begun bool
	bound Bound  // of what comes before the program begins
	buf   []byte // not judged yet
	words []byte // sudo's own
	wrong error  // why no password was given
}

// Bounds on what sudo says: on what is kept of it, and on all of it.
const (
	mostWords  = 16 << 10
	mostBefore = 1 << 20
)

func (c *sudoConn) session(cmd Command, password func(context.Context, string) (string, error)) (*sudoSession, error) {
	program, err := programLine(cmd)
	if err != nil {
		return nil, err
	}
	s := &sudoSession{conn: c, cmd: cmd, password: password, input: newSudoInput(cmd.Stdin), ask: "[sudo " + rand.Text() + " ", on: rand.Text() + "\n"}
	// As with a login the program starts at home, if it may.
	script, err := checkLine(`cd "${HOME:-/}" 2>/dev/null || cd /; echo ` + s.on[:len(s.on)-1] + " >&2\n" + setupLine(cmd.Setup) + "exec " + program)
	if err != nil {
		return nil, err
	}
	how := []string{"-n"}
	if c.answers.attended(c.target) {
		how = []string{"-S", "-p", s.ask + "%p]"} // %p is whose password it wants
	}
	argv := append(append([]string{"sudo"}, how...), "-H", "-u", c.target.Sudo, "--", "/bin/sh", "-c", script)
	s.line = Command{Argv: argv, About: cmd.About, Stdin: s.input, Stdout: cmd.Stdout, Stderr: s}
	return s, nil
}

// run runs the command to its end.
func (s *sudoSession) run(ctx context.Context) error {
	asking, over, flooded, cancel := bounded(ctx)
	s.ctx, s.bound = asking, Bound{Most: mostBefore, Over: over}
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

// Write implements io.Writer: what comes on stderr.
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
			if len(s.buf) > mostWords {
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

// pass gives the program's words to whom they are for.
func (s *sudoSession) pass(b []byte) (int, error) {
	if s.cmd.Stderr == nil || len(b) == 0 {
		return len(b), nil
	}
	return s.cmd.Stderr.Write(b)
}

func (s *sudoSession) keep(b []byte) {
	s.words = append(s.words, b[:min(len(b), mostWords-len(s.words))]...)
}

// answer gives sudo the password of a user, or nothing: then it gives up.
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

// said is the last that sudo has said.
func (s *sudoSession) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last()
}

func (s *sudoSession) last() string {
	lines := strings.Split(strings.TrimSpace(string(s.words)+string(s.buf)), "\n")
	what := lines[len(lines)-1]
	for _, line := range lines { // the first goes before what follows from it
		if strings.HasPrefix(line, "sudo: ") {
			what = strings.TrimPrefix(line, "sudo: ")
			break
		}
	}
	return clip(strings.TrimSpace(what), mostPrompt)
}

// refused is the error of a command that did not begin.
func (s *sudoSession) refused(exit *ExitError) error {
	s.keep(s.buf)
	s.buf = nil
	t, said := s.conn.target, s.last()
	if s.wrong != nil {
		return fmt.Errorf("%w on %s: %w", ErrSudo, t.Name, s.wrong)
	}
	err := fmt.Errorf("%w on %s: %s", ErrSudo, t.Name, said)
	if said == "" {
		err = fmt.Errorf("%w on %s: it ended with %w", ErrSudo, t.Name, exit)
	}
	for _, known := range sudoAdvice {
		if bytes.Contains(s.words, []byte(known[0])) {
			text := strings.NewReplacer("RUNAS", t.Sudo, "LOGIN", cmp.Or(t.User, "USER")).Replace(known[1])
			return hint.With(err, "%s", text)
		}
	}
	return hint.With(err, "try there: sudo -u %s true", t.Sudo)
}

// sudoAdvice is what helps where sudo says some words.
var sudoAdvice = [][2]string{
	{"password is required", "from a terminal dsbuild asks for it; or LOGIN needs none: NOPASSWD in the node's sudoers"},
	{"not in the sudoers", "the node's sudoers needs: LOGIN ALL=(RUNAS) NOPASSWD: ALL"},
	{"not allowed to", "the node's sudoers needs: LOGIN ALL=(RUNAS) NOPASSWD: ALL"},
	{"may not run sudo", "the node's sudoers needs: LOGIN ALL=(RUNAS) NOPASSWD: ALL"},
	{"must have a tty", "the node's sudoers needs: Defaults:LOGIN !requiretty"},
	{"unknown user", "sudo: in the inventory names a user of the node, or true for root"},
	{"not found", "is sudo installed there? sudo: false in the inventory needs none"},
}

// sudoLogin asks for the password that the sudo of a node wants.
type sudoLogin struct {
	conn  *sudoConn
	clock *deadline
	loan  *loan
	text  string
	asked int
}

// login is the user that logs in; "" if that is not known here.
func (c *sudoConn) login(ctx context.Context) string {
	if c.target.User != "" {
		return c.target.User
	}
	t, err := resolveBy(ctx, c.dialer, c.target)
	if err != nil {
		return ""
	}
	return t.User
}

// password returns that of a user. One that the sudo of another node has accepted is
// offered once, and only as the password of the user that logs in: whose it wants, the
// node says, and it must not get those of others.
func (a *sudoLogin) password(ctx context.Context, of string) (string, error) {
	defer a.clock.hold()()
	answers, t := a.conn.answers, a.conn.target
	ask := func() (string, error) {
		if a.asked++; a.asked > rounds {
			return "", fmt.Errorf("the password of %s was wrong", of)
		}
		text, err := answers.ask(ctx, question(t.Name, "", "password of "+of+" for sudo:"), false)
		if err == nil && text == "" {
			err = errNoAnswer
		}
		return text, err
	}
	var err error
	if a.loan == nil && of == a.conn.login(ctx) {
		if a.loan, err = answers.borrow(ctx, "password of "+of+" for sudo", ask); err != nil {
			return "", err
		}
		a.text = a.loan.text
		return a.text, nil
	}
	if a.text, err = ask(); err == nil && a.loan != nil && a.loan.first {
		a.loan.text = a.text
	}
	return a.text, err
}

// end settles what was lent.
func (a *sudoLogin) end(err error) {
	switch {
	case a.loan == nil:
	case err == nil:
		a.loan.prove()
	case errors.Is(err, ErrSudo):
		a.loan.refuse(fmt.Errorf("the password that was typed for sudo on %s was refused there, and is tried nowhere else", a.conn.target.Name))
	default:
		a.loan.giveBack()
	}
}

// sudoInput is what sudo reads: a password when it asks for one, and nothing else,
// then what the program is to read.
type sudoInput struct {
	program io.Reader

	mu    sync.Mutex
	cond  *sync.Cond
	typed []byte
	begun bool
	ended bool
}

func newSudoInput(program io.Reader) *sudoInput {
	s := &sudoInput{program: program}
	s.cond = sync.NewCond(&s.mu)
	return s
}

// give lets sudo have a line.
func (s *sudoInput) give(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.typed = append(append(s.typed, text...), '\n')
	s.cond.Broadcast()
}

// begin lets the program have its input.
func (s *sudoInput) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = true
	s.cond.Broadcast()
}

// end lets nobody have any more.
func (s *sudoInput) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
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
