package ui

import "fmt"

// Rewritten passes on to rep everything that is said, each text as rewrite
// makes it.
func Rewritten(rep Reporter, rewrite func(string) string) Reporter {
	return rewritten{rep, rewrite, rewrite}
}

// Prefixed puts the name of a piece of work before each line said of it, where
// several run at once.
func Prefixed(rep Reporter, name string) Reporter {
	before := func(text string) string { return "[" + name + "] " + text }
	return rewritten{rep, before, func(detail string) string { return detail }}
}

// rewritten is a Reporter that rewrites texts: those that begin a line, and those within one.
type rewritten struct {
	rep           Reporter
	title, detail func(string) string
}

func (r rewritten) Note(format string, args ...any) {
	r.rep.Note("%s", r.title(fmt.Sprintf(format, args...)))
}

func (r rewritten) Warn(format string, args ...any) {
	r.rep.Warn("%s", r.title(fmt.Sprintf(format, args...)))
}

func (r rewritten) Step(title string) Step {
	return rewrittenStep{r.rep.Step(r.title(title)), r.detail}
}

func (r rewritten) Bar(title string, total int64) Bar {
	return rewrittenBar{r.rep.Bar(r.title(title), total), r.detail}
}

type rewrittenStep struct {
	step    Step
	rewrite func(string) string
}

func (s rewrittenStep) Log(line string) { s.step.Log(s.rewrite(line)) }

func (s rewrittenStep) End(outcome Outcome, detail string) { s.step.End(outcome, s.rewrite(detail)) }

type rewrittenBar struct {
	Bar
	rewrite func(string) string
}

func (b rewrittenBar) Describe(text string) { b.Bar.Describe(b.rewrite(text)) }
