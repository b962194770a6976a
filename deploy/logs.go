package deploy

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/node"
)

// Logs configure the logs of nodes: one file for each node, with its commands and its output.
type Logs struct {
	// Dir is the folder of the log files; "" means no logs.
	Dir string
	// Failed keeps logs only of nodes that failed, in a subfolder of Dir for each run. dsbuild
	// removes the subfolders of old runs.
	Failed bool
}

// Bounds on logs, in bytes unless noted.
const (
	maxLog     = 4 << 20   // of a file; the end of a failure is written nevertheless
	maxStream  = 256 << 10 // of the output of one program
	maxWhole   = 512 << 10 // of a line while it arrives
	maxLine    = 8 << 10
	maxTail    = 16 << 10 // of the end of longer output
	maxAnswer  = 64 << 10 // of an answer to dsbuild's programs
	maxGlimpse = 2 << 10  // of an answer if Logs.Failed is set
	maxHeld    = 1 << 20  // held in memory for a file if Logs.Failed is set
	maxRunLogs = 64 << 20 // of all files of a run if Logs.Failed is set
	keptRuns   = 10
)

// logBook creates the logs of a run.
type logBook struct {
	dir    string
	failed bool
	head   string
	told   func(error) // called once, with the first write error

	mu    sync.Mutex
	names map[string]bool // file names, in lower case: some file systems ignore case
	size  int
	ready bool
	once  sync.Once
}

func newLogBook(opt Options, run string) *logBook {
	b := &logBook{
		dir: opt.Logs.Dir, failed: opt.Logs.Failed, names: map[string]bool{},
		head: fmt.Sprintf("%s by %s, run %s", opt.Command, opt.By, run),
		told: func(err error) { opt.Reporter.Warn("logs of nodes: %v", err) },
	}
	if b.failed && b.dir != "" {
		b.dir = filepath.Join(b.dir, run)
	}
	return b
}

// of creates the log of a node.
func (b *logBook) of(h inventory.Host) *nodeLog {
	return &nodeLog{book: b, host: h, file: filepath.Join(b.dir, b.name(h.Name))}
}

// name returns a file name for a node that no other node of the run has.
func (b *logBook) name(of string) string {
	safe := strings.Map(func(r rune) rune {
		switch {
		case r == '/': // the name is node/env; no node name has a plus
			return '+'
		case r == '-' || r == '.' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z':
			return r
		}
		return '_'
	}, of)
	const most = 200
	if strings.ReplaceAll(safe, "+", "/") != of || len(safe) > most || b.names[strings.ToLower(safe)] {
		sum := sha256.Sum256([]byte(of))
		safe = safe[:min(len(safe), most)] + "-" + hex.EncodeToString(sum[:6])
	}
	b.names[strings.ToLower(safe)] = true
	return safe + ".log"
}

// take reports whether the run may write n more bytes, and creates its folder.
func (b *logBook) take(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed && b.size+n > maxRunLogs {
		return false
	}
	b.size += n
	if b.ready {
		return true
	}
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		b.trouble(err)
		return false
	}
	b.ready = true
	if b.failed {
		prune(filepath.Dir(b.dir))
	}
	return true
}

// trouble reports the first file that could not be written.
func (b *logBook) trouble(err error) { b.once.Do(func() { b.told(err) }) }

// runName matches the name that New gives to a run.
var runName = regexp.MustCompile(`^\d{8}T\d{6}-[a-z0-9]{6}$`)

// prune removes the logs of all but the newest runs.
func prune(dir string) {
	entries, err := os.ReadDir(dir) // sorted by name, therefore by time
	if err != nil {
		return
	}
	runs := slices.DeleteFunc(entries, func(e os.DirEntry) bool { return !e.IsDir() || !runName.MatchString(e.Name()) })
	for _, e := range runs[:max(0, len(runs)-keptRuns)] {
		os.RemoveAll(filepath.Join(dir, e.Name())) //nolint:errcheck // the next run tries again
	}
}

// nodeLog is the log of one node: its commands and its output.
type nodeLog struct {
	book *logBook
	host inventory.Host
	file string

	mu      sync.Mutex
	text    bytes.Buffer // lines that are not written yet
	hidden  secrets
	written int
	begun   bool
	talked  bool // the phase has more than its failure to log
}

// off reports whether logs are disabled.
func (l *nodeLog) off() bool { return l.book.dir == "" }

// line logs a text of a kind; dsbuild's own actions have the kind "". Only the first line of the
// text has the time and the kind, so that output of a node cannot pass for another entry.
func (l *nodeLog) line(kind, text string) {
	if l.off() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	most := maxLog
	if l.book.failed {
		most = maxHeld
	}
	if l.written+l.text.Len() > most && kind != "" {
		return
	}
	l.talked = l.talked || kind != ""
	at := time.Now().Format("15:04:05.000")
	for line := range strings.SplitSeq(strings.TrimRight(ui.Clean(text), "\n"), "\n") {
		fmt.Fprintf(&l.text, "%s %-6s %s\n", at, kind, line)
		at = strings.Repeat(" ", len(at))
	}
	if !l.book.failed && l.text.Len() > maxStream {
		l.write()
	}
}

// step logs the start of a step and writes the file, so that a user can follow it during the run.
func (l *nodeLog) step(name string) {
	l.line("", "== "+name)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.off() && !l.book.failed {
		l.write()
	}
}

// ended logs the end of a step.
func (l *nodeLog) ended(took time.Duration, err error) {
	text := "done after " + ui.Duration(took)
	if err != nil {
		text = "failed after " + ui.Duration(took) + ": " + ui.OneLine(err.Error())
		if try := hint.Of(err); try != "" {
			text += "\nhint: " + try
		}
	}
	l.line("", text)
}

// order logs an order to the agent.
func (l *nodeLog) order(line []byte) { l.line("order", clip(string(line), maxLine)) }

// settle ends a phase: it writes the lines still held. With Logs.Failed it drops the lines of a
// node that has not failed.
func (l *nodeLog) settle(failed bool) {
	if l.off() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if failed && l.talked || !l.book.failed {
		l.write()
	}
	l.text, l.talked = bytes.Buffer{}, false
}

// path is the path of the log file; "" if there is none.
func (l *nodeLog) path() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.begun {
		return ""
	}
	return l.file
}

// write appends the lines still held to the file, without secrets.
func (l *nodeLog) write() {
	if l.hidden.words == nil {
		l.hidden = l.secrets()
	}
	text := ui.Clean(l.hidden.hide(l.text.String()))
	l.text.Reset()
	if text == "" || !l.book.take(len(text)) {
		return
	}
	flags := os.O_WRONLY | os.O_APPEND
	if !l.begun {
		// Never write into an existing file, or through an existing link.
		if err := os.Remove(l.file); err != nil && !errors.Is(err, os.ErrNotExist) {
			l.book.trouble(err)
			return
		}
		flags |= os.O_CREATE | os.O_EXCL
		text = fmt.Sprintf("%s %s: %s\n", time.Now().Format(time.RFC3339), ui.Clean(l.host.Name), l.book.head) + text
	}
	f, err := os.OpenFile(l.file, flags, 0o600)
	if err == nil {
		l.begun = true
		l.written += len(text)
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		l.book.trouble(err)
	}
}

// secrets replaces the values that a log must not show by the names of their variables.
type secrets struct{ words *strings.Replacer }

var (
	// assignment matches a variable set by a shell line or by an argument of a command.
	assignment = regexp.MustCompile(`([A-Za-z_][A-Za-z0-9_]*)=("[^"]*"|'[^']*'|[^\s"';&|]+)`)
	// login matches a user name and password in a URL.
	login = regexp.MustCompile(`(://)[^/\s@]+@`)
	// private matches names of variables whose values are never shown, however short.
	private = regexp.MustCompile(`(?i)token|secret|passw|key|credential|auth`)
)

// secrets collects the values of the variables that the inventory sets: a reader of the log does
// not need them.
func (l *nodeLog) secrets() secrets {
	var values [][2]string // pairs of a hidden value and its placeholder
	hide := func(name, value string) {
		for part := range strings.SplitSeq(value, "\n") {
			if !hides(name, part) {
				continue
			}
			sign := "[" + name + "]"
			values = append(values, [2]string{part, sign}, [2]string{strings.Trim(remote.Quote(part), "'"), sign})
			if text, err := json.Marshal(part); err == nil {
				values = append(values, [2]string{string(text[1 : len(text)-1]), sign})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.host.Env)) {
		hide(name, l.host.Env[name])
	}
	for _, line := range append([]string{l.host.Setup}, l.host.ExecPrefix...) {
		for _, m := range assignment.FindAllStringSubmatch(line, -1) {
			hide(m[1], strings.Trim(m[2], `"'`))
		}
	}
	// The longest value first: otherwise a value that is the beginning of another would leave the
	// rest of it readable.
	slices.SortStableFunc(values, func(a, b [2]string) int { return cmp.Compare(len(b[0]), len(a[0])) })
	var pairs []string
	for _, v := range values {
		pairs = append(pairs, v[:]...)
	}
	return secrets{strings.NewReplacer(pairs...)}
}

// hides reports whether a value may be a secret. Paths and very short values stay: without them a
// log would be hard to read.
func hides(name, value string) bool {
	if private.MatchString(name) {
		return len(value) > 2
	}
	paths := true
	for part := range strings.SplitSeq(value, ":") {
		paths = paths && (part == "" || part[0] == '/')
	}
	return len(value) > 5 && !paths
}

// hide replaces secrets in a text.
func (s secrets) hide(text string) string {
	if strings.Contains(text, "://") {
		text = login.ReplaceAllString(text, "${1}[login]@")
	}
	return s.words.Replace(text)
}

// conn returns a connection that logs its commands and uploads; c itself if logs are disabled.
func (l *nodeLog) conn(c remote.Conn) remote.Conn {
	if l.off() {
		return c
	}
	return loggedConn{c, l}
}

// loggedConn is a connection with a log.
type loggedConn struct {
	remote.Conn
	log *nodeLog
}

// Put implements remote.Conn.
func (c loggedConn) Put(ctx context.Context, up remote.Upload) error {
	c.log.line("put", fmt.Sprintf("%s, %s", up.Path, ui.Size(up.Size)))
	err := c.Conn.Put(ctx, up)
	c.log.line("end", outcome(err))
	return err
}

// Run implements remote.Runner.
func (c loggedConn) Run(ctx context.Context, cmd remote.Command) error {
	c.log.line("run", asked(cmd))
	out, errs := &lines{log: c.log, kind: "out", to: cmd.Stdout}, &lines{log: c.log, kind: "err", to: cmd.Stderr}
	cmd.Stdout, cmd.Stderr = out, errs
	err := c.Conn.Run(ctx, cmd)
	out.end()
	errs.end()
	c.log.line("end", outcome(err))
	return err
}

func outcome(err error) string {
	if err != nil {
		return ui.OneLine(err.Error())
	}
	return "done"
}

// asked describes a command for the log: without the values of variables, and with the size of an
// embedded program instead of its text.
func asked(cmd remote.Command) string {
	var words []string
	for _, w := range cmd.Argv {
		if strings.Contains(w, "\n") {
			w = fmt.Sprintf("[program of %s]", ui.Size(int64(len(w))))
		}
		words = append(words, assignment.ReplaceAllString(w, "$1=[…]"))
	}
	text := strings.Join(words, " ")
	if cmd.About != "" {
		text += "\nasked " + clip(cmd.About, maxLine)
	}
	if cmd.Setup != "" {
		text += "\nafter " + assignment.ReplaceAllString(cmd.Setup, "$1=[…]")
	}
	if names := slices.AppendSeq(slices.Clone(cmd.EnvNames), maps.Keys(cmd.Env)); len(names) > 0 {
		slices.Sort(names)
		text += "\nwith " + strings.Join(names, " ")
	}
	return text
}

// lines is a Writer that passes on the output of a program and logs it line by line.
type lines struct {
	log  *nodeLog
	kind string
	to   io.Writer // nil: nobody reads the output

	mu   sync.Mutex
	line []byte
	long int    // bytes of the line that are dropped
	said int    // bytes logged
	left int    // bytes beyond the bound
	tail []byte // the end of those bytes
}

// Write implements io.Writer.
func (w *lines) Write(b []byte) (int, error) {
	w.take(b)
	if w.to == nil {
		return len(b), nil
	}
	return w.to.Write(b)
}

func (w *lines) take(b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(b) > 0 {
		line, rest, whole := bytes.Cut(b, []byte("\n"))
		room := min(len(line), w.room())
		w.line = append(w.line, line[:room]...)
		w.long += len(line) - room
		if b = rest; whole {
			w.note()
		}
	}
}

// room is how many more bytes of the current line to keep. With Logs.Failed an answer is cut
// early: the answer to a probe is long, and for most nodes nobody will read it.
func (w *lines) room() int {
	most := maxWhole
	if said, ok := node.Unmark(w.line); ok && w.log.book.failed && len(said) >= maxGlimpse && !bytes.HasPrefix(said, []byte(pipBegins)) {
		most = maxGlimpse
	}
	return max(0, most-len(w.line))
}

// pipBegins is the beginning of an answer with pip's output.
const pipBegins = `{"pip":`

// note logs the current line, which is complete.
func (w *lines) note() {
	kind, line, long := w.kind, string(w.line), w.long
	answer, ok := node.Unmark(w.line)
	w.line, w.long = w.line[:0], 0
	if ok {
		kind, line = "answer", line[len(line)-len(answer):]
		if pip := pipSaid(line); pip != nil && long == 0 {
			kind, line = "pip", strings.Join(pip, "\n")
		}
	}
	most := maxLine
	switch {
	case kind == "pip":
		most = maxStream
	case kind == "answer" && w.log.book.failed:
		most = maxGlimpse
	case kind == "answer":
		most = maxAnswer
	case line == "" && long == 0: // an empty line precedes each message
		return
	}
	if cut := len(line) - most; cut > 0 {
		line, long = strings.ToValidUTF8(line[:most], ""), long+cut
	}
	if long > 0 {
		line += fmt.Sprintf(" […%d bytes more]", long)
	}
	if w.said += len(line); w.said <= maxStream || kind == "pip" {
		w.log.line(kind, line)
		return
	}
	w.left += len(line)
	w.tail = append(append(w.tail, line...), '\n')
	w.tail = w.tail[max(0, len(w.tail)-maxTail):]
}

// end logs the last line and the kept tail once the program has ended.
func (w *lines) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.line) > 0 {
		w.note()
	}
	if w.left > 0 {
		w.log.line(w.kind, fmt.Sprintf("[… of %s more, the end:]\n%s", ui.Size(int64(w.left)), w.tail))
	}
}

// pipSaid returns pip's output lines from an answer; nil for any other answer.
func pipSaid(answer string) []string {
	if !strings.HasPrefix(answer, pipBegins) {
		return nil
	}
	var said struct {
		Pip []string `json:"pip"`
	}
	if err := json.Unmarshal([]byte(answer), &said); err != nil {
		return nil
	}
	return said.Pip
}
