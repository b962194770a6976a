package node

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Bounds on what a node may answer: it is not trusted.
const (
	maxMessage = 4 << 20  // bytes of one message
	maxOutput  = 16 << 20 // bytes of stdout altogether, and of stderr
	maxStderr  = 16 << 10 // bytes of stderr that are kept, the last ones
	maxString  = 4 << 10  // bytes of one string in a message
)

//go:embed common.py
var commonSource string

//go:embed record.py
var recordPython string

//go:embed bytecode.py
var byteCodePython string

// recordSource is record.py with bytecode.py as a text, which a node compiles if need be.
var recordSource = recordPython + "\nBYTECODE = " + strconv.QuoteToASCII(byteCodePython) + "\n"

// boot reads the program from standard input, no byte more, so that what
// follows there is left to the program: first what is told to this node alone, then
// what is packed. It compiles the program part by part, and by exec alone: memory that
// is used again costs less than new one, and compile() makes a type for every kind of
// syntax there is. Its first line is what a process of dsbuild's is known by on a node
// (judge.py).
const boot = `#dsbuild
import os,sys,zlib
h,n=map(int,sys.argv[1].split("+"));n+=h;b=b""
while len(b)<n:
 c=os.read(0,n-len(b))
 if not c:sys.exit("the program did not arrive whole: does the setup line read standard input?")
 b+=c
for p in[b[:h]]+zlib.decompress(b[h:]).split(b"\f"):exec(p)`

// Program is a Python program for nodes. It is packed once, when it is first sent:
// to a thousand nodes a quarter of the bytes goes.
type Program struct{ packed func() string }

// NewProgram makes a program of sources, which follow one another: emit, and what else
// common.py and record.py define, is there, and so are the modules os and sys.
func NewProgram(sources ...string) Program {
	return pack(append([]string{commonSource, recordSource, "REQUEST = loads(REQUEST)"}, sources...)...)
}

func pack(sources ...string) Program {
	return Program{sync.OnceValue(func() string {
		var b strings.Builder
		z, _ := zlib.NewWriterLevel(&b, zlib.BestSpeed) // a level there is
		// Memory takes all that is written.
		io.WriteString(z, inParts(strings.Join(sources, "\n\n\n"))) //nolint:errcheck
		z.Close()
		return b.String()
	})}
}

// part ends a part of a program.
const part = "\f\n"

// inParts divides a program where two blank lines separate functions. Python
// takes its time to compile: small parts need less memory, which is used again.
func inParts(source string) string {
	const enough = 2000
	var b strings.Builder
	size := 0
	for piece := range strings.SplitAfterSeq(source, "\n\n\n") {
		b.WriteString(piece)
		if size += len(piece); size >= enough {
			b.WriteString(part)
			size = 0
		}
	}
	return b.String()
}

// after is a program as it is sent, behind what is told to a node alone, with the
// argument that boot takes.
func (p Program) after(told string) (sent, sizes string) {
	packed := p.packed()
	return told + packed, fmt.Sprintf("%d+%d", len(told), len(packed))
}

// Script is a Python program run on a node over one command. It answers with
// messages: each a line with a random mark and a JSON object, so that what
// setup lines, greetings and libraries print besides does no harm.
type Script struct {
	// Python is the interpreter on the node.
	Python string
	// Program is what it runs.
	Program Program
	// Request is what the program finds as REQUEST, by way of JSON.
	Request any
	// More, if set, is the program's standard input after its source.
	More io.Reader
}

// ScriptError is a program that ended before its time.
type ScriptError struct {
	Err    error  // an *remote.ExitError
	Stderr string // the end of what it said there, cleaned
}

func (e *ScriptError) Error() string {
	if last := lastLine(e.Stderr); last != "" {
		return fmt.Sprintf("%v (%v)", Words(last), e.Err)
	}
	return e.Err.Error()
}

// Unwrap gives the *remote.ExitError.
func (e *ScriptError) Unwrap() error { return e.Err }

// Run runs the program and hands each of its messages to each, in order. An
// error of each becomes Run's when the program has ended.
func (s Script) Run(ctx context.Context, r remote.Runner, each func(json.RawMessage) error) error {
	request, err := json.Marshal(s.Request)
	if err != nil {
		return err
	}
	mark := newMark()
	source, sizes := s.Program.after(fmt.Sprintf("MARK = %q\nREQUEST = %s\n", mark, strconv.QuoteToASCII(string(request))))
	var stdin io.Reader = strings.NewReader(source)
	if s.More != nil {
		stdin = io.MultiReader(stdin, s.More)
	}
	cmd := remote.Command{Argv: []string{s.Python, "-c", boot, sizes}, Stdin: stdin}
	if s.Request != nil {
		cmd.About = string(request)
	}
	return runMarked(ctx, r, cmd, mark, each)
}

const (
	markBegins = "@@dsbuild-"
	markSize   = len(markBegins) + 12 + len(" ")
)

// newMark makes the start of a message line. It is random, so that nothing
// printed earlier can pass for an answer.
func newMark() string { return markBegins + rand.Text()[:12] + " " }

// Unmark takes the mark off a line with a message, for who only looks on: ok is
// false of any other line.
func Unmark(line []byte) (message []byte, ok bool) {
	if len(line) < markSize || !bytes.HasPrefix(line, []byte(markBegins)) || line[markSize-1] != ' ' {
		return nil, false
	}
	return line[markSize:], true
}

// runMarked runs a command and hands on the marked lines of its output. A program that
// says too much, or what is not understood, is ended at once.
func runMarked(ctx context.Context, r remote.Runner, cmd remote.Command, mark string, each func(json.RawMessage) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	out := &messages{mark: []byte(mark), each: each, end: end}
	errs := &tail{bound: remote.Bound{Most: maxOutput, Over: func() { end(remote.ErrFlood) }}}
	cmd.Stdout, cmd.Stderr = out, errs
	err := r.Run(ctx, cmd)
	if out.err != nil {
		return out.err
	}
	if cause := context.Cause(ctx); errors.Is(cause, remote.ErrFlood) {
		return cause
	}
	var exit *remote.ExitError
	if errors.As(err, &exit) {
		return &ScriptError{Err: err, Stderr: clean(string(errs.kept))}
	}
	return err
}

// messages is a Writer that picks marked lines out of a program's output.
type messages struct {
	mark  []byte
	each  func(json.RawMessage) error
	end   func(cause error) // ends the program
	line  []byte
	total int
	err   error
}

// Write implements io.Writer. It takes everything until the program has ended, also
// after an error.
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
	if body, ok := bytes.CutPrefix(line, m.mark); ok {
		m.err = m.each(bytes.Clone(body))
	}
}

// tail is a Writer that keeps the last bytes.
type tail struct {
	kept  []byte
	bound remote.Bound
}

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.bound.Count(len(b))
	t.kept = append(t.kept, b...)
	if over := len(t.kept) - maxStderr; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(b), nil
}

// Decode reads a message strictly: no unknown fields, nothing behind it; and
// harmlessly: control characters are removed, long strings cut, and each string is one
// line, but in fields with the tag text:"lines".
func Decode(message json.RawMessage, into any) error {
	// Nearly all have nothing to clean, which is quicker to see than to do.
	if plain(message) && decodeStrictly(message, into) == nil {
		if bytes.Contains(message, []byte(`\n`)) || bytes.Contains(message, []byte(`\t`)) {
			joinLines(reflect.ValueOf(into))
		}
		return nil
	}
	var loose any
	if err := json.Unmarshal(message, &loose); err != nil {
		return fmt.Errorf("the node's answer is no JSON: %w", err)
	}
	tidy, err := json.Marshal(cleanAll(loose))
	if err != nil {
		return err
	}
	if err := decodeStrictly(tidy, into); err != nil {
		return fmt.Errorf("the node's answer is not understood: %w", err)
	}
	joinLines(reflect.ValueOf(into))
	return nil
}

func decodeStrictly(message []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(message))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("something stands behind it")
	}
	return nil
}

// plain reports whether clean would leave all strings of a message as they are.
func plain(message []byte) bool {
	begin := 0 // of what may be a string
	for i := 0; i < len(message); i++ {
		switch b := message[i]; {
		case b < ' ' || b > '~':
			return false
		case b == '\\':
			if i++; i == len(message) || !strings.ContainsRune(`"\/nt`, rune(message[i])) {
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

func cleanAll(v any) any {
	switch v := v.(type) {
	case string:
		return clean(v)
	case []any:
		for i := range v {
			v[i] = cleanAll(v[i])
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, inner := range v {
			out[clean(k)] = cleanAll(inner)
		}
		return out
	case float64:
		// Whole numbers travel as such: 1e+12 would not fit an int64.
		if v == float64(int64(v)) {
			return int64(v)
		}
	}
	return v
}

// clean removes what could steer a terminal and bounds the length; newlines stay.
func clean(s string) string { return ui.Shorten(ui.Clean(s), maxString) }

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
