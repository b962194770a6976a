package ui

import (
	"fmt"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
)

// plainBarFirst is the time after which a moving bar prints its first line if there is no
// terminal: a short task prints only its last line. The interval then doubles, up to StillEvery.
const plainBarFirst = 5 * time.Second

// plainLogWidth is how much of a step's newest line a reminder shows without a terminal.
const plainLogWidth = 100

// bar is a running progress bar of a Console. The console's lock protects its fields.
type bar struct {
	console *Console
	title   string
	text    []string // the text from Describe, by line
	total   int64
	done    int64
	start   time.Time
	moved   time.Time // of the last progress
	closed  bool

	// on a terminal: it renders into memory only, and the console draws the result
	drawing *progressbar.ProgressBar

	// elsewhere
	printed     int64 // percent in the last plain line
	printedTime time.Time
	printEvery  time.Duration // while it moves
}

// Add adds n bytes (or items) to the completed ones.
func (b *bar) Add(n int64) {
	c := b.console
	c.mu.Lock()
	defer c.mu.Unlock()
	b.done, b.moved = b.done+n, time.Now()
}

// Describe replaces the text after the bar.
func (b *bar) Describe(text string) {
	b.console.mu.Lock()
	defer b.console.mu.Unlock()
	b.text = b.text[:0]
	for line := range strings.SplitSeq(Clean(text), "\n") {
		b.text = append(b.text, cleanLine(line))
	}
}

// Close ends the bar and leaves one line about it.
func (b *bar) Close() {
	b.console.mu.Lock()
	defer b.console.mu.Unlock()
	if b.closed {
		return
	}
	b.closed = true
	if b.console.opts.NoProgress {
		return
	}
	now := time.Now()
	last := fmt.Sprintf("%s: %s", b.title, Duration(now.Sub(b.start)))
	if b.total > 0 {
		last = fmt.Sprintf("%s: %d%% in %s", b.title, b.percent(), Duration(now.Sub(b.start)))
	}
	b.console.finishLine(b, b.withDescription(last))
}

func (b *bar) percent() int64 {
	if b.total <= 0 {
		return 0
	}
	return int64(float64(min(max(b.done, 0), b.total)) / float64(b.total) * 100)
}

func (b *bar) withDescription(line string) string {
	if text := strings.Join(b.text, "; "); text != "" {
		return line + "  " + text
	}
	return line
}

func (b *bar) lines(now time.Time, width int) []string {
	lines := []string{b.title + "  " + Duration(now.Sub(b.start))}
	if b.drawing != nil {
		// Neither call can fail: the writer is io.Discard and done is kept in bounds.
		_ = b.drawing.Set64(min(max(b.done, 0), b.total))
		_ = b.drawing.RenderBlank()
		lines[0] = strings.TrimSpace(strings.Trim(b.drawing.String(), "\r")) + timeLeft(b.start, b.moved, now, b.done, b.total)
	}
	for i, text := range b.text {
		switch {
		case text == "":
		case i == 0:
			lines[0] += "  " + text
		default:
			lines = append(lines, "  "+text)
		}
	}
	for i := range lines {
		lines[i] = truncateColumns(lines[i], width)
	}
	return lines
}

func (b *bar) heartbeat(now time.Time) string {
	since := now.Sub(b.printedTime)
	if moved := b.percent() != b.printed; moved && since >= b.printEvery || since >= b.console.opts.StillEvery {
		b.printEvery = min(2*b.printEvery, b.console.opts.StillEvery)
		b.printed, b.printedTime = b.percent(), now
		if b.total <= 0 {
			return b.withDescription(fmt.Sprintf("%s: %s", b.title, Duration(now.Sub(b.start))))
		}
		return b.withDescription(fmt.Sprintf("%s: %d%%%s", b.title, b.printed, timeLeft(b.start, b.moved, now, b.done, b.total)))
	}
	return ""
}
