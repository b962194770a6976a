// Package hint attaches to an error the next step that its reader can try, and reads the exit code
// that an error asks for.
//
// The text of an error describes the failure. The hint suggests a remedy and is printed on a line
// of its own. A package that may not import this one gives its error type a method Hint() string
// instead: Of finds both.
package hint

import (
	"errors"
	"fmt"
)

type hinted struct {
	error
	hint string
}

func (h *hinted) Hint() string  { return h.hint }
func (h *hinted) Unwrap() error { return h.error }

// With returns err carrying the hint text. A nil err stays nil.
func With(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &hinted{err, fmt.Sprintf(format, args...)}
}

// Add is With for a text that may be "": then err keeps the hint that it has.
func Add(err error, text string) error {
	if text == "" {
		return err
	}
	return With(err, "%s", text)
}

// Of returns the outermost hint in err's chain, or "".
func Of(err error) string {
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		return h.Hint()
	}
	return ""
}
