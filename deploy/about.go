package deploy

import "time"

// About says what a report is of. The JSON does without; what people look at
// begins with it.
type About struct {
	Command   string // "dsbuild deploy"
	Inventory string // as it was named: "-" is standard input
	By        string // user@host
	At        time.Time
}

// Verdict is the report in one line.
func (r *Report) Verdict() string { return r.verdict() }
