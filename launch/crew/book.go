package crew

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// Bounds on what machines say.
const (
	maxLog    = 256 << 20 // of a file
	maxText   = 64 << 10  // of a line
	tailLines = 20        // kept of each rank for the report
	tailText  = 400       // of each of these

	mostStreams = 64 // of a rank, each attempt has its own
)

// book keeps what a job says, in files of one folder. None is held open: a job
// may have thousands of ranks.
type book struct {
	dir   string
	width int // of a rank's number
	sizes map[string]int
	err   error // the first
}

func newBook(dir string, world int) (*book, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the folder of the logs: %w", err)
	}
	return &book{dir: dir, width: len(fmt.Sprint(max(world-1, 0))), sizes: map[string]int{}}, nil
}

// The files of a run.
const (
	reportFile        = "job.json"
	mainFile          = "main.log"
	communicationFile = "communication.log"
)

// rankFile is the log of a rank: that of rank 0 is the main one.
func (b *book) rankFile(number int) string {
	if number == 0 {
		return mainFile
	}
	return fmt.Sprintf("worker-%0*d.log", b.width, number)
}

// launcherFile is the log of what started the ranks of a machine.
func launcherFile(m *member) string { return "launcher-" + fileName(m.name()) + ".log" }

// mostLocal is how many processes of a machine may have a log before their ranks are known.
const mostLocal = 1 << 10

// localFile is the log of a process whose rank is not known: that of the launcher, where a
// machine names no process that it can have.
func localFile(m *member, local string) string {
	n, err := strconv.Atoi(local)
	if err != nil || n < 0 || n >= mostLocal {
		return launcherFile(m)
	}
	return fmt.Sprintf("worker-%s.%d.log", fileName(m.name()), n)
}

// fileName is a name as part of that of a file.
func fileName(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '/': // node/env; no name of a node has a plus
			return '+'
		case r == '-' || r == '.' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z':
			return r
		}
		return '-'
	}, name)
}

// add appends a line to a file, which is made anew in each run.
func (b *book) add(file, text string) {
	size, begun := b.sizes[file]
	if size > maxLog {
		return
	}
	if size+len(text) > maxLog {
		text = "[dsbuild: nothing more is kept]"
	}
	path := filepath.Join(b.dir, file)
	flags := os.O_WRONLY | os.O_APPEND
	if !begun {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			b.trouble(err)
			return
		}
		flags |= os.O_CREATE | os.O_EXCL
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		b.trouble(err)
		return
	}
	b.sizes[file] = size + len(text)
	_, err = f.WriteString(text)
	b.trouble(err)
	b.trouble(f.Close())
}

func (b *book) trouble(err error) {
	if b.err == nil && err != nil {
		b.err = fmt.Errorf("logs of the job: %w", err)
	}
}

// finish writes the report beside the logs.
func (b *book) finish(r *Report) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	delete(b.sizes, reportFile)
	b.add(reportFile, string(text)+"\n")
	return b.err
}

// tail is the end of what somebody says, by lines.
type tail struct {
	lines   []string
	partial map[string]string // by stream: a line that has not ended
	now     string            // the newest, whether it has ended or not
}

// talk is what libraries say of how processes reach each other.
var talk = regexp.MustCompile(`\bNCCL (?:INFO|WARN|ERROR|TRACE|version)|\bRCCL\b|(?i:\bgloo\b)|ProcessGroup[A-Z]|\bc10d\b|TCPStore|coordination[_ ]service|\[rendezvous\]`)

// heard keeps what is said.
func (c *crew) heard(e event) {
	m := e.from
	if e.key == "launcher" {
		for _, line := range m.launcher.take(e.kind, e.text) {
			c.book.add(launcherFile(m), line+"\n")
			c.verdictOf(m, line, e)
		}
		return
	}
	file, who, r := localFile(m, strings.TrimPrefix(e.key, "local:")), m.name()+" "+e.key, c.rankOf(m, e.key)
	t := &tail{}
	if r != nil {
		file, who, t = c.book.rankFile(r.number), fmt.Sprintf("rank %d on %s", r.number, m.name()), &r.tail
	}
	var all strings.Builder
	for _, line := range t.take(e.kind, e.text) {
		all.WriteString(line + "\n")
		if talk.MatchString(line) {
			c.book.add(communicationFile, who+": "+line+"\n")
		}
	}
	if all.Len() > 0 {
		c.book.add(file, all.String())
	}
	if r != nil && r.number == 0 {
		c.last = t.now
	}
}

// rankOf is the rank that a machine names; nil if it is none of its own.
func (c *crew) rankOf(m *member, key string) *rank {
	var number int
	if _, err := fmt.Sscanf(key, "%d", &number); err != nil {
		return nil
	}
	if r := c.ranks[number]; r != nil && r.member == m {
		return r
	}
	return nil
}

// take adds what has come of a stream, and returns the lines that it completes.
// Of a line that is written over again and again the last state counts.
func (t *tail) take(stream, text string) (whole []string) {
	if t.partial == nil {
		t.partial = map[string]string{}
	}
	if _, known := t.partial[stream]; !known && len(t.partial) >= mostStreams {
		stream = "" // of a machine that makes streams up
	}
	rest := t.partial[stream] + text
	for {
		line, after, found := strings.Cut(rest, "\n")
		if !found && len(rest) <= maxText {
			break
		}
		if !found {
			line, after = rest[:maxText], rest[maxText:]
		}
		line = shown(line)
		whole = append(whole, line)
		t.keep(line)
		rest = after
	}
	t.partial[stream] = rest
	if now := shown(rest); strings.TrimSpace(now) != "" {
		t.now = clip(now)
	}
	return whole
}

// shown is what a terminal would show of a line at last.
func shown(line string) string {
	line = strings.TrimRight(line, "\r")
	if at := strings.LastIndexByte(line, '\r'); at >= 0 {
		line = line[at+1:]
	}
	return ui.Clean(line)
}

func (t *tail) keep(line string) {
	if strings.TrimSpace(line) == "" {
		return
	}
	t.now = clip(line)
	t.lines = append(t.lines, t.now)
	if len(t.lines) > tailLines {
		t.lines = t.lines[len(t.lines)-tailLines:]
	}
}

// end completes lines that nobody has ended.
func (t *tail) end() (whole []string) {
	for stream, rest := range t.partial {
		if line := shown(rest); strings.TrimSpace(line) != "" {
			whole = append(whole, line)
			t.keep(line)
		}
		delete(t.partial, stream)
	}
	return whole
}

func clip(s string) string {
	if len(s) <= tailText {
		return s
	}
	return strings.ToValidUTF8(s[:tailText], "") + "…"
}
