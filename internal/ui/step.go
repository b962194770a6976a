package ui

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// step is a running step of a Console; its fields belong to the console's lock.
type step struct {
	console  *Console
	title    string
	start    time.Time
	newest   string // the last line of output
	jobs     jobs
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
	if at := jobLine.FindStringSubmatch(line); at != nil {
		s.jobs.count(at, time.Now())
	}
	if s.jobs.parts == nil { // the number of jobs says more than other output
		s.newest = line
	}
}

// output describes what the step does now.
func (s *step) output(now time.Time) string {
	if s.jobs.parts == nil {
		return s.newest
	}
	return s.jobs.text(now)
}

// jobLine matches the line of a finished compile job (pipeline/scripts/jobs.py): "job 3 of 40 of cu12: core 1, 12.3 to 34.5 s,
// CPU 21.0 s, 912 MiB: csrc/adam/cpu_adam.cpp". Only several parts have names.
var jobLine = regexp.MustCompile(`^job (\d{1,6}) of (\d{1,6})(?: of (\S+))?: .*: (\S[^:]*)$`)

// jobs counts the jobs of a step, which may have several parts.
type jobs struct {
	parts map[string][2]int64 // ended and all, by part
	first time.Time           // of the first line
	ended int64               // jobs that had ended before, by the first line of each part
	moved time.Time           // of the last line
	last  string              // the job in the last line
}

func (j *jobs) count(line []string, now time.Time) {
	if j.parts == nil {
		j.parts, j.first = map[string][2]int64{}, now
	}
	ended, _ := strconv.ParseInt(line[1], 10, 64) // digits
	all, _ := strconv.ParseInt(line[2], 10, 64)
	if _, known := j.parts[line[3]]; !known {
		j.ended += ended
	}
	j.parts[line[3]], j.moved, j.last = [2]int64{ended, all}, now, line[4]
}

func (j *jobs) text(now time.Time) string {
	var ended, all int64
	for _, part := range j.parts {
		ended, all = ended+part[0], all+part[1]
	}
	left := timeLeft(j.first, j.moved, now, ended-j.ended, all-j.ended)
	return fmt.Sprintf("%d of %d jobs%s, last %s", ended, all, left, j.last)
}

// timeLeft estimates the remaining time from the progress between start and moved: ", about 12 min left". It returns ""
// if there is no estimate, or less than a minute is left.
func timeLeft(start, moved, now time.Time, done, total int64) string {
	if done <= 0 || done >= total {
		return ""
	}
	left := moved.Sub(start).Minutes()/float64(done)*float64(total-done) - now.Sub(moved).Minutes()
	if left < 1 {
		return ""
	}
	return fmt.Sprintf(", about %.0f min left", left)
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
	if output := s.output(now); output != "" {
		text += "  " + output
	}
	return []string{truncateColumns(text, width)}
}

func (s *step) heartbeat(now time.Time) string {
	if now.Sub(s.reminded) < s.console.opts.StillEvery {
		return ""
	}
	s.reminded = now
	text := "still running: " + s.title + ", " + Duration(now.Sub(s.start).Round(time.Second))
	if output := s.output(now); output != "" {
		text += ": " + truncateColumns(output, plainLogWidth)
	}
	return text
}
