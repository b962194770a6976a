package ui

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Console is the human-readable Reporter. On a terminal the running steps and bars are live lines
// below the finished ones. Elsewhere (a file, a CI log) Console prints only plain lines, and every
// StillEvery what is still running.
//
// All text passes through Clean, because steps and notes may quote the output of nodes and builds.
type Console struct {
	opts  Options
	marks marks

	mu     sync.Mutex
	w      io.Writer
	live   []liveLine    // running steps and bars, the oldest first
	drawn  int           // live lines on the screen now
	frame  int           // counts redraws, for the spinner
	stop   chan struct{} // ends the ticker; nil while none runs
	paused bool          // another writer uses the terminal
	held   strings.Builder
	closed bool
}

// liveLine is a running step or bar.
type liveLine interface {
	// lines are its lines on a terminal, at most width columns wide.
	lines(now time.Time, width int) []string
	// heartbeat is the plain line that is due now, or "".
	heartbeat(now time.Time) string
}

// New returns a Console that writes to w, usually standard error.
func New(w io.Writer, opts Options) *Console {
	if opts.Size == nil {
		opts.Size = defaultSize
	}
	opts.StillEvery = cmp.Or(opts.StillEvery, 30*time.Second)
	return &Console{w: w, opts: opts, marks: opts.marks()}
}

// Configure applies the user's choices, before the first line.
func (c *Console) Configure(s Settings) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opts.Settings = s
	c.marks = c.opts.marks()
}

// Note prints one line that needs no context.
func (c *Console) Note(format string, args ...any) {
	if c.opts.Quiet {
		return
	}
	c.printLines(Clean(fmt.Sprintf(format, args...)))
}

// Detail prints one line if Verbose is set.
func (c *Console) Detail(format string, args ...any) {
	if c.opts.Verbose {
		c.printLines(Clean(fmt.Sprintf(format, args...)))
	}
}

// Warn prints one line as a warning.
func (c *Console) Warn(format string, args ...any) {
	c.printLines(c.marks.warning + Clean(fmt.Sprintf(format, args...)))
}

// Step announces a step.
func (c *Console) Step(title string) Step {
	s := &step{console: c, title: cleanLine(title), start: time.Now()}
	s.reminded = s.start
	c.openLine(s)
	return s
}

// Bar starts an aggregate progress bar.
func (c *Console) Bar(title string, total int64) Bar {
	b := &bar{console: c, title: cleanLine(title), total: total, start: time.Now()}
	b.printedTime, b.printEvery = b.start, plainBarFirst
	if c.opts.Terminal && total > 0 {
		theme := progressbar.ThemeDefault
		if c.opts.ASCII {
			theme = progressbar.ThemeASCII
		}
		b.drawing = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(io.Discard),
			progressbar.OptionSetTheme(theme),
			progressbar.OptionSetDescription(b.title),
			progressbar.OptionSetWidth(24),
			progressbar.OptionSetElapsedTime(true),
			progressbar.OptionSetPredictTime(false), // it predicts 0s after a while without progress
		)
	}
	c.openLine(b)
	return b
}

// Close removes the live lines from the screen and stops redrawing. Console prints later reports
// as plain lines.
func (c *Console) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.live = nil
	c.stopTicker()
	c.endPause()
	c.writeText("")
}

// Pause removes the live lines from the terminal and holds back reports until the caller calls
// resume, so that the caller can prompt the user.
func (c *Console) Pause() (resume func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.opts.Terminal || c.paused || c.closed {
		return func() {}
	}
	// Remove the live lines from the screen.
	live := c.live
	c.live = nil
	c.writeText("")
	c.live = live
	c.paused = true
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.endPause()
	})
}

// endPause ends a pause. The caller holds the lock.
func (c *Console) endPause() {
	if !c.paused {
		return
	}
	c.paused = false
	text := c.held.String()
	c.held.Reset()
	c.writeText(text)
}

// printLines writes finished lines above the live ones.
func (c *Console) printLines(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeText(text)
}

func (c *Console) openLine(l liveLine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.opts.Quiet || c.opts.NoProgress {
		return
	}
	c.live = append(c.live, l)
	if c.stop == nil {
		c.stop = make(chan struct{})
		go c.tickUntil(c.stop)
	}
	if c.opts.Terminal {
		c.writeText("")
	}
}

// finishLine removes l from the live lines and prints its last line, if any. The
// caller holds the lock.
func (c *Console) finishLine(l liveLine, last string) {
	for i, other := range c.live {
		if other == l {
			c.live = append(c.live[:i:i], c.live[i+1:]...)
			break
		}
	}
	if len(c.live) == 0 {
		c.stopTicker()
	}
	if !c.opts.Quiet {
		c.writeText(last)
	}
}

func (c *Console) stopTicker() {
	if c.stop != nil {
		close(c.stop)
		c.stop = nil
	}
}

// tickUntil redraws the live lines, or prints reminders, until stop is closed.
func (c *Console) tickUntil(stop <-chan struct{}) {
	every := 100 * time.Millisecond
	if !c.opts.Terminal {
		every = time.Second
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
			c.mu.Lock()
			if c.stop == stop {
				c.redrawLive()
			}
			c.mu.Unlock()
		}
	}
}

// redrawLive updates the display at each tick. The caller holds the lock.
func (c *Console) redrawLive() {
	if c.opts.Terminal {
		c.frame++
		c.writeText("")
		return
	}
	now := time.Now()
	for _, l := range c.live {
		if text := l.heartbeat(now); text != "" {
			c.writeText(text)
		}
	}
}

// writeText prints text, which may be empty or lack the final newline. On a
// terminal it redraws the live lines below, all in one Write. Errors are
// dropped: there is nowhere left to report them. The caller holds the lock.
func (c *Console) writeText(text string) {
	if c.paused {
		if text != "" {
			c.held.WriteString(strings.TrimSuffix(text, "\n") + "\n")
		}
		return
	}
	var out bytes.Buffer
	if c.drawn > 0 {
		out.WriteString("\r\x1b[K" + strings.Repeat("\x1b[A\x1b[K", c.drawn-1))
		c.drawn = 0
	}
	if text != "" {
		out.WriteString(strings.TrimSuffix(text, "\n") + "\n")
	}
	if c.opts.Terminal && !c.closed {
		lines := c.liveLines()
		out.WriteString(strings.Join(lines, "\n"))
		c.drawn = len(lines)
	}
	if out.Len() > 0 {
		_, _ = c.w.Write(out.Bytes())
	}
}

// liveLines renders as many live lines as fit the screen.
func (c *Console) liveLines() []string {
	width, height := c.opts.Size()
	// A full last column makes some terminals wrap, and the console cannot erase lines that have
	// scrolled off the top.
	width, height = max(width-1, 10), max(min(height-1, maxLiveLines), 1)
	now := time.Now()
	var lines []string
	for i, l := range c.live {
		left, room := len(c.live)-i, height-len(lines)
		if left > 1 {
			room-- // for the others
		}
		if room == 0 {
			return append(lines, truncateColumns(fmt.Sprintf("  and %d more", left), width))
		}
		shown := l.lines(now, width)
		lines = append(lines, shown[:min(len(shown), room)]...)
	}
	return lines
}

// maxLiveLines bounds the live part of the screen.
const maxLiveLines = 12
