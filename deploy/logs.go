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

// Logs say what is kept of all that nodes are asked and say: a file for each node.
type Logs struct {
	// Dir is the folder of the files; "" keeps none.
	Dir string
	// Failed has only nodes that failed leave a file, in a folder of its own in Dir
	// for each run; those of old runs are removed.
	Failed bool
}

// Bounds on logs.
const (
	maxLog     = 4 << 20   // bytes of a file; of a failure the end is written all the same
	maxStream  = 256 << 10 // of what one program says
	maxWhole   = 512 << 10 // of a line while it comes
	maxLine    = 8 << 10
	maxTail    = 16 << 10 // of the end of a program that says more
	maxAnswer  = 64 << 10 // of an answer to dsbuild's programs
	maxGlimpse = 2 << 10  // of one where only failures are kept
	maxHeld    = 1 << 20  // of all that is held for a file there
	maxRunLogs = 64 << 20 // of all files of a run where only failures are kept
	keptRuns   = 10
)

// logBook makes the logs of a run.
type logBook struct {
	dir    string
	failed bool
	head   string
	told   func(error) // the first file that could not be written

	mu    sync.Mutex
	names map[string]bool // of files, in lower case: not every file system tells case apart
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

// of is the log of a node.
func (b *logBook) of(h inventory.Host) *nodeLog {
	return &nodeLog{book: b, host: h, file: filepath.Join(b.dir, b.name(h.Name))}
}

// name is that of a node's file, of no other node.
func (b *logBook) name(of string) string {
	safe := strings.Map(func(r rune) rune {
		switch {
		case r == '/': // node/env; no name of a node has a plus
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

// take says whether so much more may be written in this run, and makes its folder.
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

// trouble tells of the first file that could not be written.
func (b *logBook) trouble(err error) { b.once.Do(func() { b.told(err) }) }

// runName is what New calls a run.
var runName = regexp.MustCompile(`^\d{8}T\d{6}-[a-z0-9]{6}$`)

// prune removes the logs of all but the newest runs.
func prune(dir string) {
	entries, err := os.ReadDir(dir) // by name, so by time
	if err != nil {
		return
	}
	runs := slices.DeleteFunc(entries, func(e os.DirEntry) bool { return !e.IsDir() || !runName.MatchString(e.Name()) })
	for _, e := range runs[:max(0, len(runs)-keptRuns)] {
		os.RemoveAll(filepath.Join(dir, e.Name())) //nolint:errcheck // the next run tries again
	}
}

// nodeLog is what one node was asked and said.
type nodeLog struct {
	book *logBook
	host inventory.Host
	file string

	mu      sync.Mutex
	text    bytes.Buffer // not written yet
	hidden  secrets
	written int
	begun   bool
	talked  bool // there is more to tell than that it failed
}

// off says that nothing is kept.
func (l *nodeLog) off() bool { return l.book.dir == "" }

// line notes a text of a kind: what dsbuild does has none. Only its first line has the
// time and the kind, so that no word of a node passes for another entry.
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

// step notes that a step begins, so that who looks meanwhile sees it.
func (l *nodeLog) step(name string) {
	l.line("", "== "+name)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.off() && !l.book.failed {
		l.write()
	}
}

// ended notes how a step ended.
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

// order notes what the program that changes an environment is told.
func (l *nodeLog) order(line []byte) { l.line("order", clip(string(line), maxLine)) }

// settle is the end of a phase. Where only failures are kept, of a node that has
// not failed nothing is.
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

// path is where the log lies; "" if there is none.
func (l *nodeLog) path() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.begun {
		return ""
	}
	return l.file
}

// write appends to the file what is not there yet.
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
		// Never into a file, or through a link, that is there already.
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

// secrets is what a log must not show, and what it shows instead.
type secrets struct{ words *strings.Replacer }

var (
	// assignment is a variable that a shell line, or a word of a command, sets.
	assignment = regexp.MustCompile(`([A-Za-z_][A-Za-z0-9_]*)=("[^"]*"|'[^']*'|[^\s"';&|]+)`)
	// login is a name and password in an address.
	login = regexp.MustCompile(`(://)[^/\s@]+@`)
	// private are names of variables whose values are never shown, however short.
	private = regexp.MustCompile(`(?i)token|secret|passw|key|credential|auth`)
)

// secrets are the values of the variables that the inventory sets: who sees a
// log need not see them.
func (l *nodeLog) secrets() secrets {
	var values [][2]string // what is hidden, and its sign
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
	// A value that another begins with must not leave the rest of it.
	slices.SortStableFunc(values, func(a, b [2]string) int { return cmp.Compare(len(b[0]), len(a[0])) })
	var pairs []string
	for _, v := range values {
		pairs = append(pairs, v[:]...)
	}
	return secrets{strings.NewReplacer(pairs...)}
}

// hides says whether a value may be a secret. Paths, and what is too short to be
// one, stay: hidden, they would make a log hard to read.
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

// hide takes secrets out of a text.
func (s secrets) hide(text string) string {
	if strings.Contains(text, "://") {
		text = login.ReplaceAllString(text, "${1}[login]@")
	}
	return s.words.Replace(text)
}

// conn notes what goes over a connection.
func (l *nodeLog) conn(c remote.Conn) remote.Conn {
	if l.off() {
		return c
	}
	return loggedConn{c, l}
}

// loggedConn is a connection of which a log is kept.
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

// asked is a command for a log: without the values of variables, and with the
// programs that it is made of counted instead of shown.
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

// lines is a Writer that passes on what a program says and notes it by lines.
type lines struct {
	log  *nodeLog
	kind string
	to   io.Writer // nil: nobody

	mu   sync.Mutex
	line []byte
	long int    // bytes of the line that are not kept
	said int    // bytes noted
	left int    // bytes that were too many
	tail []byte // the end of those
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

// room is how much more of a line is kept while it comes. The answer to a probe
// is long, and of most nodes nobody will look at it.
func (w *lines) room() int {
	most := maxWhole
	if said, ok := node.Unmark(w.line); ok && w.log.book.failed && len(said) >= maxGlimpse && !bytes.HasPrefix(said, []byte(pipBegins)) {
		most = maxGlimpse
	}
	return max(0, most-len(w.line))
}

// pipBegins begins the answer that brings what pip said.
const pipBegins = `{"pip":`

// note notes the line that is whole now.
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
	case line == "" && long == 0: // a message begins on a line of its own
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

// end notes what is left when the program has ended.
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

// pipSaid are the lines of pip that an answer brings; nil if it is none such.
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
