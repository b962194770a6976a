// Package cause finds messages about different nodes that have the same cause.
//
// A message for people contains details that each node has for itself: its address, a process,
// its free space. The code that writes the message marks these details with Own. The cause is the
// message without them. Nodes with the same cause share a line of a report.
package cause

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
)

// gap replaces a marked value.
const gap = "…"

// own is a marked value: a detail that a node has for itself.
type own struct{ value any }

// Format implements fmt.Formatter: it prints the value as if it were not marked.
func (o own) Format(s fmt.State, verb rune) { fmt.Fprintf(s, fmt.FormatString(s, verb), o.value) }

// Own marks an argument of Errorf or Messagef as a detail that each node has for itself.
func Own(value any) any { return own{value} }

// left prints gap in place of a marked value, for every verb.
type left struct{}

// Format implements fmt.Formatter.
func (left) Format(s fmt.State, _ rune) { io.WriteString(s, gap) } //nolint:errcheck // never fails

// Message is a text with its cause.
type Message struct {
	Text  string
	Cause string
}

// Messagef formats a message and its cause.
func Messagef(format string, args ...any) Message {
	return Message{fmt.Sprintf(format, args...), without(format, args)}
}

// From returns the message of an error.
func From(err error) Message { return Message{err.Error(), Of(err)} }

// String returns the text.
func (m Message) String() string { return m.Text }

// caused is an error with a known cause.
type caused struct {
	error
	cause string
}

// Cause returns the message without the node's own details.
func (c *caused) Cause() string { return c.cause }

// Unwrap returns the error with the full message.
func (c *caused) Unwrap() error { return c.error }

// Errorf is fmt.Errorf for arguments that may be marked.
func Errorf(format string, args ...any) error {
	return &caused{fmt.Errorf(format, args...), without(format, args)}
}

// Error makes an error of a message.
func Error(m Message) error { return &caused{errors.New(m.Text), m.Cause} }

// without formats a message without its marked arguments.
func without(format string, args []any) string {
	kept := make([]any, len(args))
	for i, arg := range args {
		switch a := arg.(type) {
		case own:
			kept[i] = left{}
		case Message:
			kept[i] = a.Cause
		case error:
			kept[i] = Of(a)
		default:
			kept[i] = arg
		}
	}
	return fmt.Sprintf(strings.NewReplacer("%%", "%%", "%w", "%v").Replace(format), kept...)
}

// Of returns the message of an error without the node's own details, wherever in the chain of
// errors they were marked.
func Of(err error) string {
	switch e := err.(type) { //nolint:errorlint // each link of the chain is looked at by itself
	case nil:
		return ""
	case interface{ Cause() string }:
		return e.Cause()
	case *net.OpError:
		return e.Op + " " + e.Net + ": " + Of(e.Err)
	case *net.DNSError:
		return e.Err
	case interface{ Unwrap() error }:
		return replaced(err.Error(), e.Unwrap())
	case interface{ Unwrap() []error }:
		return replaced(err.Error(), e.Unwrap()...)
	}
	return err.Error()
}

// replaced returns the text of an error with the text of each wrapped error replaced by its
// cause.
func replaced(text string, wrapped ...error) string {
	for _, inner := range wrapped {
		if inner != nil && inner.Error() != "" {
			text = strings.Replace(text, inner.Error(), Of(inner), 1)
		}
	}
	return text
}
