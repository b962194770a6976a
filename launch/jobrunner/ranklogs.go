package jobrunner

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/launch/why"
)

// Limits on the output of nodes.
const (
	maxLog    = 256 << 20 // bytes of a file
	maxText   = 64 << 10  // bytes of a line
	tailLines = 20        // last lines of each rank, for the report
	tailText  = 400       // bytes of each of these lines

	maxStreams = 64 // of a rank; each attempt has its own
)

// rankLogs writes the output of a job to files in one folder. It keeps no file open: a
// job may have thousands of ranks.
type rankLogs struct {
	dir   string
	width int // digits of a rank's number
	sizes map[string]int
	err   error // the first error
}

func newRankLogs(dir string, world int) (*rankLogs, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot create the log directory: %w", err)
	}
	return &rankLogs{dir: dir, width: len(fmt.Sprint(max(world-1, 0))), sizes: map[string]int{}}, nil
}

// The files of a run.
const (
	reportFile        = "job.json"
	mainFile          = "main.log"
	communicationFile = "communication.log"
)

// rankFile returns the name of a rank's log. Rank 0 has the main log.
func (b *rankLogs) rankFile(number int) string {
	if number == 0 {
		return mainFile
	}
	return fmt.Sprintf("worker-%0*d.log", b.width, number)
}

// launcherFile returns the name of the log of a node's launcher.
func launcherFile(m *member) string { return "launcher-" + fileName(m.name()) + ".log" }

// maxLocal is the maximum number of logs for processes of a node without a known rank.
const maxLocal = 1 << 10

// localFile returns the name of the log of a process without a known rank. For an
// impossible process, it is the launcher's log.
func localFile(m *member, local string) string {
	n, err := strconv.Atoi(local)
	if err != nil || n < 0 || n >= maxLocal {
		return launcherFile(m)
	}
	return fmt.Sprintf("worker-%s.%d.log", fileName(m.name()), n)
}

// fileName makes a file name of a node's name.
func fileName(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '/': // node/env; a node's name has no plus
			return '+'
		case r == '-' || r == '.' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z':
			return r
		}
		return '-'
	}, name)
}

// appendLine appends a line to a file. The first line of a run replaces an older file.
func (b *rankLogs) appendLine(file, text string) {
	size, begun := b.sizes[file]
	if size > maxLog {
		return
	}
	if size+len(text) > maxLog {
		text, size = "[dsbuild: log truncated]\n", maxLog
	}
	path := filepath.Join(b.dir, file)
	flags := os.O_WRONLY | os.O_APPEND
	if !begun {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			b.keepError(err)
			return
		}
		flags |= os.O_CREATE | os.O_EXCL
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		b.keepError(err)
		return
	}
	b.sizes[file] = size + len(text)
	_, err = f.WriteString(text)
	b.keepError(err)
	b.keepError(f.Close())
}

func (b *rankLogs) keepError(err error) {
	if b.err == nil && err != nil {
		b.err = fmt.Errorf("cannot write the job's logs: %w", err)
	}
}

func (b *rankLogs) writeReport(r *Report) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	delete(b.sizes, reportFile)
	b.appendLine(reportFile, string(text)+"\n")
	return b.err
}

// tail keeps the last lines of an output.
type tail struct {
	lines   []string
	partial map[string]string // by stream: an unfinished line
	now     string            // the newest line, finished or not
	scanner *why.Scanner      // of all lines
}

// communication matches the libraries' messages about communication.
var communication = regexp.MustCompile(`\bNCCL (?:INFO|WARN|ERROR|TRACE|version)|\bRCCL\b|(?i:\bgloo\b)|` +
	`ProcessGroup[A-Z]|\bc10d\b|TCPStore|coordination[_ ]service|\[rendezvous\]`)

func (c *jobRun) logOutput(e event) {
	m := e.from
	if e.Out.Key == "launcher" {
		for _, line := range m.launcher.addText(e.Out.Kind, e.Out.Text) {
			c.book.appendLine(launcherFile(m), line+"\n")
			c.verdictOf(m, line, e)
		}
		return
	}
	file, who := localFile(m, strings.TrimPrefix(e.Out.Key, "local:")), m.name()+" "+e.Out.Key
	var r *rank
	var number int
	_, err := fmt.Sscanf(e.Out.Key, "%d", &number)
	if err == nil && c.ranks[number] != nil && c.ranks[number].member == m {
		r = c.ranks[number] // a node reports only its own ranks
	}
	t := &tail{}
	if r != nil {
		file, who, t = c.book.rankFile(r.number), fmt.Sprintf("rank %d on %s", r.number, m.name()), &r.tail
	}
	var all strings.Builder
	for _, line := range t.addText(e.Out.Kind, e.Out.Text) {
		all.WriteString(line + "\n")
		if communication.MatchString(line) {
			c.book.appendLine(communicationFile, who+": "+line+"\n")
		}
	}
	if all.Len() > 0 {
		c.book.appendLine(file, all.String())
	}
	if r != nil && r.number == 0 {
		c.last = t.now
	}
}

// addText adds text of a stream and returns the lines that it completes. Only the
// final state of an overwritten line, such as a progress bar, is kept.
func (t *tail) addText(stream, text string) (whole []string) {
	if t.partial == nil {
		t.partial = map[string]string{}
	}
	if _, known := t.partial[stream]; !known && len(t.partial) >= maxStreams {
		stream = "" // a hostile node may invent streams
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
		line = lastState(line)
		whole = append(whole, line)
		t.keepLine(line)
		rest = after
	}
	t.partial[stream] = rest
	if now := lastState(rest); strings.TrimSpace(now) != "" {
		t.now = ui.Shorten(now, tailText)
	}
	return whole
}

// lastState returns the final state of a line on a terminal.
func lastState(line string) string {
	line = strings.TrimRight(line, "\r")
	if at := strings.LastIndexByte(line, '\r'); at >= 0 {
		line = line[at+1:]
	}
	return ui.Clean(line)
}

func (t *tail) keepLine(line string) {
	if strings.TrimSpace(line) == "" {
		return
	}
	if t.scanner == nil {
		t.scanner = why.NewScanner(-1)
	}
	t.scanner.Add(line)
	t.now = ui.Shorten(line, tailText)
	t.lines = append(t.lines, t.now)
	if len(t.lines) > tailLines {
		t.lines = t.lines[len(t.lines)-tailLines:]
	}
}

// endLines completes the unfinished lines.
func (t *tail) endLines() (whole []string) {
	for stream, rest := range t.partial {
		if line := lastState(rest); strings.TrimSpace(line) != "" {
			whole = append(whole, line)
			t.keepLine(line)
		}
		delete(t.partial, stream)
	}
	return whole
}
