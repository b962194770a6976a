package fleet

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
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

// logFolder creates the logs of a run.
type logFolder struct {
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

func newLogFolder(opt Options, run string) *logFolder {
	b := &logFolder{
		dir: opt.Logs.Dir, failed: opt.Logs.Failed, names: map[string]bool{},
		head: fmt.Sprintf("%s by %s, run %s", opt.Command, opt.By, run),
		told: func(err error) { opt.Reporter.Warn("logs of nodes: %v", err) },
	}
	if b.failed && b.dir != "" {
		b.dir = filepath.Join(b.dir, run)
	}
	return b
}

// newLog creates the log of a node.
func (b *logFolder) newLog(h inventory.Host) *Log {
	return &Log{folder: b, host: h, file: filepath.Join(b.dir, b.fileName(h.Name))}
}

// fileName returns a file name for a node that no other node of the run has.
func (b *logFolder) fileName(of string) string {
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

// reserve reports whether the run may write n more bytes, and creates its folder.
func (b *logFolder) reserve(n int) bool {
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
		PruneRuns(filepath.Dir(b.dir), keptRuns)
	}
	return true
}

// trouble reports the first file that could not be written.
func (b *logFolder) trouble(err error) { b.once.Do(func() { b.told(err) }) }

// runName matches the name that New gives to a run. The name of a job follows that of its run.
var runName = regexp.MustCompile(`^\d{8}T\d{6}-[a-z0-9]{6}(-.*)?$`)

// PruneRuns removes the folders of all but the newest runs.
func PruneRuns(dir string, keep int) {
	entries, err := os.ReadDir(dir) // sorted by name, therefore by time
	if err != nil {
		return
	}
	runs := slices.DeleteFunc(entries, func(e os.DirEntry) bool { return !e.IsDir() || !runName.MatchString(e.Name()) })
	for _, e := range runs[:max(0, len(runs)-keep)] {
		os.RemoveAll(filepath.Join(dir, e.Name())) //nolint:errcheck // the next run tries again
	}
}

// Log is the log of one node: its commands and its output.
type Log struct {
	folder *logFolder
	host   inventory.Host
	file   string
	once   sync.Once
	hidden secrets // by hide

	mu      sync.Mutex
	text    bytes.Buffer // lines that are not written yet
	written int
	begun   bool
	talked  bool // the phase has more than its failure to log
}

// off reports whether logs are disabled.
func (l *Log) off() bool { return l.folder.dir == "" }

// Line logs a text of a kind; dsbuild's own actions have the kind "". Only the first line of the
// text has the time and the kind, so that output of a node cannot pass for another entry.
func (l *Log) Line(kind, text string) {
	if l.off() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	most := maxLog
	if l.folder.failed {
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
	if !l.folder.failed && l.text.Len() > maxStream {
		l.write()
	}
}

// step logs the start of a step and writes the file, so that a user can follow it during the run.
func (l *Log) step(name string) {
	l.Line("", "== "+name)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.off() && !l.folder.failed {
		l.write()
	}
}

// ended logs the end of a step.
func (l *Log) ended(took time.Duration, err error) {
	text := "done after " + ui.Duration(took)
	if err != nil {
		text = "failed after " + ui.Duration(took) + ": " + ui.OneLine(err.Error())
		if try := hint.Of(err); try != "" {
			text += "\nhint: " + try
		}
	}
	l.Line("", text)
}

// Order logs an order to a program on the node.
func (l *Log) Order(line []byte) {
	if !l.off() {
		l.Line("order", ui.ShortenMiddle(l.hide(string(line)), maxLine))
	}
}

// endPhase ends a phase: it writes the lines still held. With Logs.Failed it drops the lines of a
// node that has not failed.
func (l *Log) endPhase(failed bool) {
	if l.off() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if failed && l.talked || !l.folder.failed {
		l.write()
	}
	l.text, l.talked = bytes.Buffer{}, false
}

// Path is the path of the log file; "" if there is none.
func (l *Log) Path() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.begun {
		return ""
	}
	return l.file
}

// write appends the lines still held to the file, without secrets.
func (l *Log) write() {
	text := ui.Clean(l.hide(l.text.String()))
	l.text.Reset()
	if text == "" || !l.folder.reserve(len(text)) {
		return
	}
	flags := os.O_WRONLY | os.O_APPEND
	if !l.begun {
		// Never write into an existing file, or through an existing link.
		if err := os.Remove(l.file); err != nil && !errors.Is(err, os.ErrNotExist) {
			l.folder.trouble(err)
			return
		}
		flags |= os.O_CREATE | os.O_EXCL
		text = fmt.Sprintf("%s %s: %s\n", time.Now().Format(time.RFC3339), ui.Clean(l.host.Name), l.folder.head) + text
	}
	f, err := os.OpenFile(l.file, flags, 0o600)
	if err == nil {
		l.begun = true
		l.written += len(text)
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		l.folder.trouble(err)
	}
}
