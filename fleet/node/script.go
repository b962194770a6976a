package node

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Bounds on a node's answer, because dsbuild does not trust it.
const (
	maxMessage = 4 << 20  // bytes of one message
	maxOutput  = 16 << 20 // bytes of stdout altogether, and of stderr
	maxStderr  = 16 << 10 // the last bytes of stderr that dsbuild keeps
	maxBegin   = 1 << 10  // the first bytes
	maxString  = 4 << 10  // bytes of one string in a message
)

// Script is a Python program that dsbuild runs on a node with one command. It answers with
// messages: each is a line with a random mark and a JSON object, so that other output of setup
// lines, greetings and libraries does no harm.
type Script struct {
	// Python is the interpreter on the node: absolute or a command name; "python3" if empty. It is the program that
	// answered the probe, by the same name: the path of sys.executable may be another program on the node.
	Python string
	// Find, if set, are interpreters in place of Python: the first that exists runs the program,
	// without the user's folders and variables for Python.
	Find []string
	// Program is the program to run.
	Program Program
	// Request is an object: the program's REQUEST.
	Request any
	// More, if set, is the program's standard input after its source.
	More io.Reader
	// Endless accepts output of any size, for the output of a job.
	Endless bool
}

// find starts boot with the first interpreter that exists.
const find = `run=$1 boot=$2 sizes=$3; shift 3; ` +
	`for p; do if command -v "$p" >/dev/null 2>&1; then exec "$p" -I -c "$run" "$boot" "$sizes"; fi; done; ` +
	`echo "no Python 3 found" >&2; exit 127`

// ScriptError reports a program that ended early.
type ScriptError struct {
	Err    error  // an *remote.ExitError
	Stderr string // the end of its standard error, cleaned
	why    string // of a program that did not begin, if known
}

func (e *ScriptError) Error() string {
	if e.why != "" {
		return e.why
	}
	if words := pythonsWords(e.Stderr); words != "" {
		return fmt.Sprintf("%v (%v)", NewNodeError(words), e.Err)
	}
	return e.Err.Error()
}

// wrongVariable matches a variable in the output of a Python that cannot start.
var wrongVariable = regexp.MustCompile(`(?m)^\s*(PYTHONHOME|PYTHONPATH) = '(.+)'$`)

// inModule matches what Python puts before the name of an error of the package.
var inModule = regexp.MustCompile(`^dsbuild_node\.\w+\.`)

// pythonsWords returns the line of a Python's standard error that says why it ended: the last one, unless it could
// not even start.
func pythonsWords(stderr string) string {
	_, fatal, could := strings.Cut(stderr, "Fatal Python error: ")
	if !could {
		lines := strings.Split(strings.TrimSpace(stderr), "\n")
		return inModule.ReplaceAllString(strings.TrimSpace(lines[len(lines)-1]), "")
	}
	words, _, _ := strings.Cut("Fatal Python error: "+fatal, "\n")
	for _, m := range wrongVariable.FindAllStringSubmatch(stderr, -1) {
		words += fmt.Sprintf("; %s is set to %s", m[1], m[2])
	}
	return words
}

// Unwrap returns the *remote.ExitError.
func (e *ScriptError) Unwrap() error { return e.Err }

// Run runs the program and passes each of its messages to each, in order. An error of each
// becomes Run's when the program has ended.
func (s Script) Run(ctx context.Context, r remote.Runner, each func(json.RawMessage) error) error {
	request, err := json.Marshal(s.Request)
	if err != nil {
		return err
	}
	mark := newMark()
	source, sizes := s.Program.withInput(mark, request)
	var stdin io.Reader = strings.NewReader(source)
	if s.More != nil {
		stdin = io.MultiReader(stdin, s.More)
	}
	cmd := remote.Command{Argv: []string{cmp.Or(s.Python, defaultPython), "-c", runBoot, boot, sizes}, Stdin: stdin}
	if len(s.Find) > 0 {
		cmd.Argv = append([]string{"sh", "-c", find, "sh", runBoot, boot, sizes}, s.Find...)
	}
	if s.Request != nil {
		cmd.About = string(request)
	}
	return runMarked(ctx, r, cmd, &messages{mark: []byte(mark), each: each, endless: s.Endless})
}

const (
	markBegins = "@@dsbuild-"
	markSize   = len(markBegins) + 12 + len(" ")
)

// newMark makes the start of a message line. It is random, so that no earlier output can look
// like an answer.
func newMark() string { return markBegins + rand.Text()[:12] + " " }

// Unmark removes the mark from a line with a message, for observers that do not know the mark. ok
// is false for any other line.
func Unmark(line []byte) (message []byte, ok bool) {
	if len(line) < markSize || !bytes.HasPrefix(line, []byte(markBegins)) || line[markSize-1] != ' ' {
		return nil, false
	}
	return line[markSize:], true
}

// runMarked runs a command and passes on the marked lines of its output. It ends the program at
// once if the program writes too much, or lines that dsbuild cannot read.
func runMarked(ctx context.Context, r remote.Runner, cmd remote.Command, out *messages) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	out.end = end
	errs := &tail{bound: remote.Limiter{Most: maxOutput, OnExceed: func() { end(remote.ErrFlood) }}}
	cmd.Stdout, cmd.Stderr = out, errs
	err := r.Run(ctx, cmd)
	cause := context.Cause(ctx)
	switch {
	case !out.answered && (errors.Is(out.err, remote.ErrFlood) || errors.Is(cause, remote.ErrFlood)):
		return floodError()
	case out.err != nil:
		return out.err
	case errors.Is(cause, remote.ErrFlood):
		return cause
	}
	exit := (*remote.ExitError)(nil)
	broken := errors.As(err, &exit)
	said := cleanText(string(errs.kept))
	if strings.TrimSpace(said) == "" && !out.answered { // a shell such as nologin says on stdout why it runs nothing
		said = cleanText(string(out.other))
	}
	failed := &ScriptError{Err: err, Stderr: said}
	switch {
	case !out.answered && firstWord.Match(errs.begin):
		failed.why = "a startup file of the login shell starts another shell, which consumed dsbuild's program as its input"
		return fault.WithHint(failed, "start it only in interactive shells, in .bashrc: [[ $- == *i* ]] && exec zsh; "+
			"or change the login shell: chsh -s /bin/zsh")
	case broken && !out.answered &&
		(exit.Code == sftpServerFailed && said == "" || strings.Contains(said, "sftp connections only")):
		failed.why = fmt.Sprintf(
			"account is restricted to SFTP (%v)", err)
		return fault.WithHint(failed, "%s; or exempt this one from ForceCommand in the node's sshd_config; test with: ssh NODE true",
			fault.Set("user", "another account"))
	case broken && exit.Code == notFound && !out.answered && strings.Contains(said, "sh: not found"):
		return fault.WithHint(failed, "set PATH in a startup file of this account, or in env: of the inventory; see it with: ssh NODE 'echo $PATH'")
	case !out.answered && (err == nil || broken && (strings.TrimSpace(said) == "" || strings.Contains(said, incomplete))):
		if why := loginFault(ctx, r); why != nil {
			return why
		}
	}
	if broken {
		return failed
	}
	return err
}

// incomplete is boot's error if another program has read a part of its input.
const incomplete = "program arrived incomplete"

const startupFile = "startup file of the login shell (~/.bashrc, ~/.zshenv, ~/.ssh/rc)"

// quietShells begins each hint about startup files.
const quietShells = "put this first in ~/.bashrc of this account on the node: [[ $- == *i* ]] || return; "

// loginFault finds out why a program did not answer: it runs a small one that shows whether commands run, and get their
// input, in the login shell and after setup:. It returns nil if they do.
func loginFault(ctx context.Context, r remote.Runner) error {
	mark := newMark()
	said, err := remote.RunForAnswer(ctx, r, remote.Command{
		Argv: []string{"sh", "-c", `echo "$1"; cat`, "sh", mark + "runs"}, Stdin: strings.NewReader(mark + "reads\n"),
	})
	if err != nil && !errors.As(err, new(*remote.ExitError)) || strings.Contains(said, mark+"reads") {
		return nil
	}
	if strings.Contains(said, mark+"runs") {
		return fault.WithHint(errors.New("a "+startupFile+", or setup:, read dsbuild's program as its input"),
			quietShells+"test with: echo ok | ssh NODE cat")
	}
	why := errors.New("no output from the node: a " + startupFile +
		", or setup:, exits or closes its output before dsbuild's command")
	return fault.WithHint(why, quietShells+"test with: ssh NODE echo ok")
}

// floodError is the error of a node that printed too much before the program's first message.
func floodError() error {
	return fault.WithHint(fmt.Errorf("%w, before dsbuild's program began: from setup: or a %s",
		remote.ErrFlood, startupFile), quietShells+"test with: ssh NODE true | wc -c")
}

// blockedError is the error of a probe that timed out without any output.
func blockedError(late error) error {
	return fault.WithHint(fmt.Errorf("%w without any output from the node", late),
		"look for what blocks it: a startup file of the login shell, or a home on a hung file system (time ssh NODE true); "+
			"or the file system of its Python")
}

// notFound is the exit status of a shell that does not find a command.
const notFound = 127

// sftpServerFailed is the exit status of OpenSSH's SFTP server after input that is not SFTP.
const sftpServerFailed = 11

// firstWord matches the first word of a program in the message of a shell that does not know it as a command. fish
// and Python read all of the program first, and name another place of it.
var firstWord = regexp.MustCompile(`(?m)\bMARK\b|^fish: |<stdin>`)

// messages is a Writer that picks marked lines out of a program's output.
type messages struct {
	mark    []byte
	each    func(json.RawMessage) error
	endless bool              // total has no limit
	end     func(cause error) // ends the program
	line    []byte
	other   []byte // the last line that is no message
	total   int

	answered bool // a message has come
	err      error
}

// Write implements io.Writer. It accepts all output until the program has ended, even after an
// error.
func (m *messages) Write(b []byte) (int, error) {
	n := len(b)
	defer func() {
		if m.err != nil {
			m.end(m.err)
		}
	}()
	m.total += n
	for len(b) > 0 && m.err == nil {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			m.line = append(m.line, b...)
			break
		}
		m.line = append(m.line, b[:i]...)
		b = b[i+1:]
		m.endLine()
	}
	if len(m.line) > maxMessage || m.total > maxOutput {
		m.line = nil
		if m.err == nil {
			m.err = remote.ErrFlood
		}
	}
	return n, nil
}

func (m *messages) endLine() {
	line := bytes.TrimRight(m.line, "\r")
	m.line = nil
	if len(line) > maxMessage {
		m.err = remote.ErrFlood
		return
	}
	body, ok := bytes.CutPrefix(line, m.mark)
	if !ok && len(bytes.TrimSpace(line)) > 0 {
		m.other = line[:min(len(line), maxStderr)]
	}
	if ok {
		m.answered = true
		if m.endless {
			m.total -= len(line) + len("\n\n") // emit writes a line break before it, too
		}
		m.err = m.each(bytes.Clone(body))
	}
}

// tail is a Writer that keeps the first and the last bytes.
type tail struct {
	begin []byte // the first ones
	kept  []byte
	bound remote.Limiter
}

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.bound.Count(len(b))
	t.begin = append(t.begin, b[:min(len(b), maxBegin-len(t.begin))]...)
	t.kept = append(t.kept, b...)
	if over := len(t.kept) - maxStderr; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(b), nil
}

// Decode reads a message strictly: it rejects unknown fields and text after the message. It also
// makes strings harmless: it removes control characters, cuts long strings, and makes each string
// one line, except in fields whose names end in _text: these hold whole files.
func Decode(message json.RawMessage, into any) error {
	// Nearly all messages are clean, and the check costs less than cleaning.
	if isClean(message) && decodeStrictly(message, into) == nil {
		return nil
	}
	var loose any
	if err := json.Unmarshal(message, &loose); err != nil {
		return fmt.Errorf("invalid JSON from the node: %w", err)
	}
	tidy, err := json.Marshal(cleanAll(loose, false))
	if err == nil {
		err = decodeStrictly(tidy, into)
	}
	if err != nil {
		return fmt.Errorf("unexpected reply from the node: %w", err)
	}
	return nil
}

func decodeStrictly(message []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(message))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("unexpected text after the value")
	}
	return nil
}

// isClean reports whether clean would change no string of a message.
func isClean(message []byte) bool {
	begin := 0 // start of a value that may be a string
	for i := 0; i < len(message); i++ {
		switch b := message[i]; {
		case b < ' ' || b > '~':
			return false
		case b == '\\':
			if i++; i == len(message) || !strings.ContainsRune(`"\/`, rune(message[i])) {
				return false
			}
		case b == '"':
			if i-begin > maxString {
				return false
			}
			begin = i
		}
	}
	return true
}

// cleanAll makes the strings in a value harmless; lines keeps line breaks.
func cleanAll(v any, lines bool) any {
	switch v := v.(type) {
	case string:
		if lines {
			return cleanText(v)
		}
		return ui.OneLine(cleanText(v))
	case []any:
		for i := range v {
			v[i] = cleanAll(v[i], lines)
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, inner := range v {
			out[ui.OneLine(cleanText(k))] = cleanAll(inner, strings.HasSuffix(k, "_text"))
		}
		return out
	case float64:
		// Encode whole numbers without an exponent: 1e+12 would not fit an int64.
		if v == float64(int64(v)) {
			return int64(v)
		}
	}
	return v
}

// cleanText removes characters that could control a terminal, and bounds the length. Newlines
// stay.
func cleanText(s string) string { return ui.Shorten(ui.Clean(s), maxString) }
