package ui

import (
	"strings"
	"time"
)

// step is a running step of a Console; its fields belong to the console's lock.
type step struct {
	console  *Console
	title    string
	start    time.Time
	newest   string // the last line of output
	reminded time.Time
	ended    bool
}

// Log remembers the newest line of output, or prints it if Verbose is set.
func (s *step) Log(line string) {
	line = strings.TrimSpace(cleanLine(line))
	if line == "" {
		return
	}
	s.console.mu.Lock()
	defer s.console.mu.Unlock()
	if s.console.opts.Verbose {
		s.console.writeText(s.title + ": " + line)
		return
	}
	s.newest = line
}

// End prints the step's last line.
func (s *step) End(outcome Outcome, detail string) {
	s.console.mu.Lock()
	defer s.console.mu.Unlock()
	if s.ended {
		return
	}
	s.ended = true
	marks := s.console.marks
	mark, end := marks.done, Duration(time.Since(s.start))
	switch outcome {
	case Cached:
		mark, end = marks.cached, "cached"
	case Skipped:
		mark, end = marks.skipped, "skipped"
	case Failed:
		mark = marks.failed
	}
	line := mark + " " + s.title + "  " + end
	if detail = cleanLine(detail); detail != "" {
		line += "  " + detail
	}
	s.console.finishLine(s, line)
}

func (s *step) lines(now time.Time, width int) []string {
	spinner := s.console.marks.spinner
	text := spinner[s.console.frame%len(spinner)] + " " + s.title + "  " + Duration(now.Sub(s.start))
	if s.newest != "" {
		text += "  " + s.newest
	}
	return []string{truncateColumns(text, width)}
}

func (s *step) heartbeat(now time.Time) string {
	if now.Sub(s.reminded) < s.console.opts.StillEvery {
		return ""
	}
	s.reminded = now
	text := "still running: " + s.title + ", " + Duration(now.Sub(s.start).Round(time.Second))
	if s.newest != "" {
		text += ": " + truncateColumns(s.newest, plainLogWidth)
	}
	return text
}
