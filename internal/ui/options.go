package ui

import (
	"cmp"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// Options describe the terminal or file that a Console writes to.
type Options struct {
	// Terminal allows live lines that are redrawn.
	Terminal bool
	// Color allows colours.
	Color bool
	// Settings are the user's choices.
	Settings
	// ASCII keeps marks and bars to ASCII.
	ASCII bool
	// Size returns the terminal's columns and rows. The default is 80x24.
	Size func() (width, height int)
	// StillEvery is the interval at which a running step prints a line if there is no terminal. The
	// default is 30 seconds.
	StillEvery time.Duration
}

// Settings are the command line's flags for the output.
type Settings struct {
	Color      Color
	Quiet      bool // only warnings; a Console does not print errors and results
	Verbose    bool // the lines of all steps, and details
	NoProgress bool // no live lines, bars or reminders
}

// Color is when to use colors.
type Color string

// The values of Color. ColorAuto is the default and means Options.Color.
const (
	ColorAuto   Color = "auto"
	ColorAlways Color = "always"
	ColorNever  Color = "never"
)

// FromEnvironment finds out whether w is a terminal, and applies NO_COLOR, TERM and the locale.
func FromEnvironment(w io.Writer) Options {
	locale := strings.ToLower(cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG"))) // the order of POSIX
	opts := Options{ASCII: !strings.Contains(locale, "utf-8") && !strings.Contains(locale, "utf8")}
	fd, ok := terminalOf(w)
	if !ok || os.Getenv("TERM") == "dumb" || !understandsEscapes(fd) {
		return opts
	}
	opts.Terminal = true
	opts.Color = os.Getenv("NO_COLOR") == ""
	opts.Size = func() (int, int) {
		width, height, ok := terminalSize(w)
		if !ok {
			return defaultSize()
		}
		return width, height
	}
	return opts
}

// terminalOf returns the descriptor of the terminal that w writes to.
func terminalOf(w io.Writer) (fd int, ok bool) {
	file, ok := w.(interface{ Fd() uintptr })
	if !ok {
		return -1, false
	}
	fd = int(file.Fd())
	return fd, term.IsTerminal(fd)
}

func terminalSize(w io.Writer) (width, height int, ok bool) {
	fd, ok := terminalOf(w)
	if !ok {
		return 0, 0, false
	}
	width, height, err := term.GetSize(fd)
	return width, height, err == nil && width > 0 && height > 0
}

func defaultSize() (width, height int) { return 80, 24 }

// marks are the symbols before lines, colored if enabled.
type marks struct {
	done, cached, skipped, failed string
	warning                       string
	spinner                       []string
}

// marks returns the symbols for these options.
func (o Options) marks() marks {
	m := marks{
		done: "✓", cached: "•", skipped: "-", failed: "✗", warning: "warning:",
		spinner: []string{"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"},
	}
	if o.ASCII {
		m.done, m.cached, m.failed = "+", "*", "x"
		m.spinner = []string{"|", "/", "-", "\\"}
	}
	if o.Settings.Color == ColorAlways || o.Color && o.Settings.Color != ColorNever {
		m.done = "\x1b[32m" + m.done + "\x1b[0m"
		m.cached = "\x1b[2m" + m.cached + "\x1b[0m"
		m.failed = "\x1b[31m" + m.failed + "\x1b[0m"
		m.warning = "\x1b[33m" + m.warning + "\x1b[0m"
	}
	m.warning += " "
	return m
}
