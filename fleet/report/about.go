package report

import "time"

// About describes the run that a report belongs to. It begins the printed and HTML reports, and is not in the JSON
// report.
type About struct {
	Command   string // "dsbuild deploy"
	Inventory string // as the user named it: "-" is standard input
	By        string // user@host
	At        time.Time
}
