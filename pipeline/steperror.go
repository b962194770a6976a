package pipeline

import "fmt"

// StepError reports a step that failed, with the lines of its output that give the reason.
type StepError struct {
	Step string
	Err  error
	Ran  bool   // the step's program ran and failed; else the step did not come to its end
	Tail string // the end of the program's output
}

func (e *StepError) Error() string {
	msg := fmt.Sprintf("step %s: %v", e.Step, e.Err)
	if e.Tail != "" {
		msg += "\n" + e.Tail
	}
	return msg
}

func (e *StepError) Unwrap() error { return e.Err }

// ExitCode returns 4 for a wheel that does not work after its installation and for a package that is
// not the one of the plan, and the code of a failed run for every other failure.
func (e *StepError) ExitCode() int {
	if e.Step == SmokeStep && e.Ran && !noSpaceLine.MatchString(e.Tail) || otherHash.MatchString(e.Error()) {
		return 4
	}
	return 1
}
