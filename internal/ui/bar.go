package ui

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
)

// plainBarEvery is how often a bar that moves prints a line where there is no
// terminal: a short transfer leaves its last line only.
const plainBarEvery = 5 * time.Second

// plainLogWidth is how much of a step's newest line a reminder shows there.
const plainLogWidth = 100

// bar is a running progress bar of a Console; its fields belong to the
// console's lock.
type bar struct {
	console *Console
	title   string
	text    string // what Describe said
	total   int64
	done    int64
	start   time.Time
	closed  bool

	// on a terminal: renders into memory only, the console draws it
	drawing *progressbar.ProgressBar

	// elsewhere
	printed     int64 // percent in the last plain line
	printedTime time.Time
}

func newBar(c *Console, title string, total int64) *bar {
	b := &bar{console: c, title: title, total: total, start: time.Now()}
	b.printedTime = b.start
	if c.opts.Terminal && total > 0 {
		theme := progressbar.ThemeUnicode
		if c.opts.ASCII {
			theme = progressbar.ThemeASCII
		}
		b.drawing = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(io.Discard),
			progressbar.OptionSetTheme(theme),
			progressbar.OptionSetDescription(title),
			progressbar.OptionSetWidth(24),
			progressbar.OptionSetElapsedTime(true),
			progressbar.OptionSetPredictTime(true),
		)
	}
	return b
}

// Add counts n more bytes (or items) as done.
func (b *bar) Add(n int64) {
	c := b.console
	c.mu.Lock()
	defer c.mu.Unlock()
	b.done += n
}

// Describe replaces the text behind the bar.
func (b *bar) Describe(text string) {
	b.console.mu.Lock()
	defer b.console.mu.Unlock()
	b.text = cleanLine(text)
}

// Close ends the bar and leaves one line about it.
func (b *bar) Close() {
	b.console.mu.Lock()
	defer b.console.mu.Unlock()
	if b.closed {
		return
	}
	b.closed = true
	now := time.Now()
	last := fmt.Sprintf("%s: %s", b.title, Duration(now.Sub(b.start)))
	if b.total > 0 {
		last = fmt.Sprintf("%s: %d%% in %s", b.title, b.percent(), Duration(now.Sub(b.start)))
	}
	b.console.finish(b, b.described(last))
}

func (b *bar) percent() int64 {
	if b.total <= 0 {
		return 0
	}
	return int64(float64(min(max(b.done, 0), b.total)) / float64(b.total) * 100)
}

func (b *bar) described(line string) string {
	if b.text != "" {
		return line + "  " + b.text
	}
	return line
}

// plain is the line of a log, and remembers what it said.
func (b *bar) plain(now time.Time) string {
	b.printed, b.printedTime = b.percent(), now
	if b.total <= 0 {
		return b.described(fmt.Sprintf("%s: %s", b.title, Duration(now.Sub(b.start))))
	}
	return b.described(fmt.Sprintf("%s: %d%%", b.title, b.printed))
}

func (b *bar) line(now time.Time, width int) string {
	if b.drawing == nil {
		return truncate(b.described(b.title+"  "+Duration(now.Sub(b.start))), width)
	}
	// Neither call can fail: the writer is io.Discard and done is kept in bounds.
	_ = b.drawing.Set64(min(max(b.done, 0), b.total))
	_ = b.drawing.RenderBlank()
	drawn := strings.TrimSpace(strings.Trim(b.drawing.String(), "\r"))
	return truncate(b.described(drawn), width)
}

func (b *bar) remind(now time.Time) string {
	since := now.Sub(b.printedTime)
	if moved := b.percent() != b.printed; moved && since >= plainBarEvery || since >= b.console.opts.StillEvery {
		return b.plain(now)
	}
	return ""
}
