// Package ui is the one place that talks to a person: step lines, one
// aggregate progress bar, tables, folded results and the --json document.
//
// Results go to stdout; progress and log lines to stderr. The rest of the
// program sees only the Reporter interface.
package ui

// Outcome is how a step ended.
type Outcome int

// The ways a step can end.
const (
	Done Outcome = iota
	Cached
	Skipped
	Failed
)

// Reporter receives the events of a running command. Several goroutines may call its methods.
type Reporter interface {
	// Note prints one line that needs no context.
	Note(format string, args ...any)
	// Detail prints one line that only users of --verbose see.
	Detail(format string, args ...any)
	// Warn prints one line as a warning.
	Warn(format string, args ...any)
	// Step announces a step; End on the returned Step closes it with its time.
	Step(title string) Step
	// Bar starts an aggregate progress bar over total bytes (or items). A total of 0 or less
	// means unknown: then the bar shows the elapsed time.
	Bar(title string, total int64) Bar
}

// Step is a running step of a Reporter.
type Step interface {
	// Log passes on a line of the step's output. The display shows the newest line while the
	// step runs: at once on a terminal, now and then elsewhere.
	Log(line string)
	// End closes the step; later calls do nothing. A detail that is not empty is shown behind
	// the title.
	End(outcome Outcome, detail string)
}

// Bar is a running progress bar of a Reporter.
type Bar interface {
	// Add counts n more bytes (or items) as done.
	Add(n int64)
	// Describe replaces the text behind the bar (the slowest node, failures). On a terminal,
	// text after a newline stands below the bar.
	Describe(text string)
	// Close ends the bar; later calls do nothing.
	Close()
}
