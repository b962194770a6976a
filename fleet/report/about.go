package report

import "time"

// About describes the run that a report belongs to. The JSON report leaves it out; the printed
// and HTML reports begin with it.
type About struct {
	Command   string // "dsbuild deploy"
	Inventory string // as the user named it: "-" is standard input
	By        string // user@host
	At        time.Time
}
