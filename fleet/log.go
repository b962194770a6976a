package fleet

import (
	"bytes"
	"context"
	"crypto/rand"
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

	"github.com/dsbuild/dsbuild/internal/filelock"
	"github.com/dsbuild/dsbuild/internal/secrets"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// Logs configure the logs of nodes: one file for each node, with its commands and its output.
type Logs struct {
	// Dir is the folder of the log files. If it is empty, nothing is logged.
	Dir string
	// Failed keeps logs only of nodes that failed, in a subfolder of Dir for each run. dsbuild
	// removes the subfolders of old runs.
	Failed bool
}

const (
	// maxLog is how many bytes a log keeps of the end of a step; with Logs.Failed, of a phase.
	maxLog = 512 << 10
	// maxLine is how many bytes a log keeps of a line, and of all that pip says.
	maxLine  = 64 << 10
	keptRuns = 10
)

// logFolder creates the logs of a run.
type logFolder struct {
	dir    string
	failed bool
	head   string
	create func() error // creates dir, once
	told   func(error)  // called with each write error
	detail func(format string, args ...any)
	names  map[string]bool // file names, in lower case: some file systems ignore case

	release func() // of HoldRun, or nil
}

func newLogFolder(opt Options, run string) *logFolder {
	b := &logFolder{
		dir: opt.Logs.Dir, failed: opt.Logs.Failed, names: map[string]bool{},
		head:   fmt.Sprintf("%s by %s, run %s", opt.Command, opt.By, run),
		detail: func(format string, args ...any) { opt.Reporter.Detail(format, args...) },
	}
	if b.failed && b.dir != "" {
		b.dir = filepath.Join(b.dir, run)
	}
	b.create = sync.OnceValue(func() (err error) {
		if !b.failed {
			return os.MkdirAll(b.dir, 0o700)
		}
		b.release, err = HoldRun(b.dir, keptRuns)
		return err
	})
	var once sync.Once
	b.told = func(err error) { once.Do(func() { opt.Reporter.Warn("cannot write node logs: %v", err) }) }
	return b
}

// newLog creates the log of a node.
func (b *logFolder) newLog(h inventory.Host) *Log {
	l := &Log{folder: b, node: h.Name, file: filepath.Join(b.dir, b.fileName(h.Name))}
	l.secrets = sync.OnceValue(func() *secrets.Hider { return secretsOf(h, false) })
	l.shown = sync.OnceValue(func() *secrets.Hider { return secretsOf(h, true) })
	return l
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

// runName matches the name of a run. The name of a job follows that of its run.
var runName = regexp.MustCompile(`^\d{8}T\d{6}-[a-z0-9]{6}(-.*)?$`)

// NewRunName returns a name for a run that begins now.
func NewRunName() string {
	return time.Now().UTC().Format("20060102T150405-") + strings.ToLower(rand.Text()[:6])
}

// HoldRun creates the folder of a run. Of the other folders of runs there, it keeps the newest, and those that a run still
// holds. The caller releases the folder when its run has ended.
func HoldRun(dir string, keep int) (release func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if release, err = filelock.Take(context.Background(), dir, filelock.Options{}); err != nil {
		return nil, err
	}
	entries, _ := os.ReadDir(filepath.Dir(dir)) //nolint:errcheck // the next run removes them
	runs := slices.DeleteFunc(entries, func(e os.DirEntry) bool { return !e.IsDir() || !runName.MatchString(e.Name()) })
	for _, e := range runs[:max(0, len(runs)-keep)] { // sorted by name, therefore by time
		old := filepath.Join(filepath.Dir(dir), e.Name())
		if free, err := filelock.Take(context.Background(), old, filelock.Options{}); err == nil {
			os.RemoveAll(old) //nolint:errcheck // the next run removes it
			free()
		}
	}
	return release, nil
}

// Log is the log of one node: its commands and its output.
type Log struct {
	folder  *logFolder
	node    string // its name in the inventory
	file    string
	secrets func() *secrets.Hider // hides all values of the inventory, in the log
	shown   func() *secrets.Hider // hides passwords and the like, in messages and the report

	mu    sync.Mutex
	begun bool // the file exists

	// Of the current phase:
	text    []byte // the lines that are not written yet
	dropped int    // bytes before them
	talked  bool   // it has more than its failure to log
}

// off reports whether logs are disabled.
func (l *Log) off() bool { return l.folder.dir == "" }

// Line logs a text of a kind; dsbuild's own actions have the kind "". Only the first line of the
// text has the time and the kind, so that output of a node cannot pass for another entry.
func (l *Log) Line(kind, text string) { l.add(kind, text, 0) }

// add is Line for a text of which its reader has dropped more bytes. Here secrets are hidden, before
// anything is cut: a cut would leave a readable part of one.
func (l *Log) add(kind, text string, more int) {
	if l.off() {
		return
	}
	if text = ui.Clean(text); strings.Contains(text, "://") {
		text = login.ReplaceAllString(text, "${1}[login]@")
	}
	text = l.secrets().Hide(text)
	if more == 0 {
		text = ui.ShortenMiddle(text, maxLine) // its end often says the most
	} else { // its end may be a part of a secret
		text = fmt.Sprintf("%s [… %d more bytes]", ui.Shorten(text, maxLine), more)
	}
	at := time.Now().Format("15:04:05.000")
	l.mu.Lock()
	defer l.mu.Unlock()
	l.talked = l.talked || kind != ""
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		if kind != "order" {
			l.folder.detail("%s: %s", l.node, strings.TrimPrefix(line, "== "))
		}
		l.text = fmt.Appendf(l.text, "%s %-6s %s\n", at, kind, line)
		at = strings.Repeat(" ", len(at))
	}
	if len(l.text) > 2*maxLog { // not for each line: that would move these bytes each time
		from := len(l.text) - maxLog
		from += bytes.IndexByte(l.text[from:], '\n') + 1
		l.dropped += from
		l.text = append(l.text[:0], l.text[from:]...)
	}
}

// step logs the start of a step and writes the file, so that a user can follow it during the run.
func (l *Log) step(name string) {
	l.Line("", "== "+name)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.folder.failed {
		l.write()
	}
}

// Order logs an order to a program on the node.
func (l *Log) Order(line []byte) { l.Line("order", string(line)) }

// endPhase ends a phase: it writes the lines still held. With Logs.Failed it drops the lines of a
// node that has not failed.
func (l *Log) endPhase(failed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if failed && l.talked || !l.folder.failed {
		l.write()
	}
	l.text, l.dropped, l.talked = nil, 0, false
}

// Path is the path of the log file, or "".
func (l *Log) Path() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.begun {
		return ""
	}
	return l.file
}

// write appends the lines still held to the file. The caller holds mu.
func (l *Log) write() {
	if len(l.text) == 0 {
		return
	}
	if l.dropped > 0 {
		l.text = append(fmt.Appendf(nil, "[… %s omitted …]\n", ui.Size(int64(l.dropped))), l.text...)
	}
	err := l.folder.create()
	if err == nil && !l.begun {
		err = l.begin()
	}
	if err == nil {
		err = l.appendToFile(l.text, 0)
	}
	l.text, l.dropped = nil, 0
	if err != nil {
		l.folder.told(err)
	}
}

// begin creates the file. It never writes into an existing file, or through an existing link.
func (l *Log) begin() error {
	if err := os.Remove(l.file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	head := fmt.Sprintf("%s %s: %s\n", time.Now().Format(time.RFC3339), ui.Clean(l.node), l.folder.head)
	err := l.appendToFile([]byte(head), os.O_CREATE|os.O_EXCL)
	l.begun = err == nil
	return err
}

func (l *Log) appendToFile(text []byte, flags int) error {
	f, err := os.OpenFile(l.file, os.O_WRONLY|os.O_APPEND|flags, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}
