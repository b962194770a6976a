package ui

import "fmt"

// WithRewrite returns a Reporter that forwards to rep and rewrites each text.
func WithRewrite(rep Reporter, rewrite func(string) string) Reporter {
	return rewritten{rep, rewrite, rewrite}
}

// WithPrefix prefixes each line with a task's name, for concurrent tasks.
func WithPrefix(rep Reporter, name string) Reporter {
	before := func(text string) string { return "[" + name + "] " + text }
	return rewritten{rep, before, func(detail string) string { return detail }}
}

// rewritten rewrites texts that begin a line, and texts within one.
type rewritten struct {
	rep           Reporter
	title, detail func(string) string
}

func (r rewritten) Note(format string, args ...any) {
	r.rep.Note("%s", r.title(fmt.Sprintf(format, args...)))
}

func (r rewritten) Detail(format string, args ...any) {
	r.rep.Detail("%s", r.title(fmt.Sprintf(format, args...)))
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
