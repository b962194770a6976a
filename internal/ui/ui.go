// Package ui is the user interface on the command line: step lines, an
// aggregate progress bar, tables, folded results, prompts and the --json document.
//
// Results go to stdout, progress and log lines to stderr. The rest of the
// program uses only the Reporter interface.
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
	// Log adds a line of the step's output. The newest line is displayed while the step runs,
	// immediately on a terminal, at intervals elsewhere.
	Log(line string)
	// End closes the step. Later calls do nothing. A detail, if not empty, is shown after the
	// title.
	End(outcome Outcome, detail string)
}

// Bar is a running progress bar of a Reporter.
type Bar interface {
	// Add adds n bytes (or items) to the completed ones.
	Add(n int64)
	// Describe replaces the text after the bar (the slowest node, failures). On a terminal,
	// text after a newline is shown below the bar.
	Describe(text string)
	// Close ends the bar; later calls do nothing.
	Close()
}
