// Package nodeerr finds messages about different nodes that have the same cause.
//
// A human-readable message contains details that differ between nodes: an address, a process, the
// free space. The code that writes the message marks these details with Own. Common is the message
// without them. Nodes with equal Common share a line of a report.
package nodeerr

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
)

// Reported stands before what a node itself says, so that no reader takes it for dsbuild's words.
const Reported = "node reported: "

// gap replaces a marked value.
const gap = "…"

// own is a marked value.
type own struct{ value any }

// Format implements fmt.Formatter: it prints the value as if it were not marked.
func (o own) Format(s fmt.State, verb rune) { fmt.Fprintf(s, fmt.FormatString(s, verb), o.value) }

// Own marks an argument of Errorf or Messagef as a detail that differs between nodes.
func Own(value any) any { return own{value} }

// left prints gap in place of a marked value, for every verb.
type left struct{}

// Format implements fmt.Formatter.
func (left) Format(s fmt.State, _ rune) { io.WriteString(s, gap) } //nolint:errcheck // never fails

// Message is a text about a node.
type Message struct {
	Text   string
	Common string // the text without what only this node has
}

// Messagef formats a message, whose arguments may be marked.
func Messagef(format string, args ...any) Message {
	return Message{fmt.Sprintf(format, args...), without(format, args)}
}

// From returns the message of an error.
func From(err error) Message { return Message{err.Error(), Common(err)} }

// String returns the text.
func (m Message) String() string { return m.Text }

// marked is an error with marked arguments.
type marked struct {
	error
	common string
}

// Common returns the message without the node's own details.
func (m *marked) Common() string { return m.common }

// Unwrap returns the error with the full message.
func (m *marked) Unwrap() error { return m.error }

// Errorf is fmt.Errorf for arguments that may be marked.
func Errorf(format string, args ...any) error {
	return &marked{fmt.Errorf(format, args...), without(format, args)}
}

// Error makes an error of a message.
func Error(m Message) error { return &marked{errors.New(m.Text), m.Common} }

// without formats a message without its marked arguments.
func without(format string, args []any) string {
	kept := make([]any, len(args))
	for i, arg := range args {
		switch a := arg.(type) {
		case own:
			kept[i] = left{}
		case Message:
			kept[i] = a.Common
		case error:
			kept[i] = Common(a)
		default:
			kept[i] = arg
		}
	}
	return fmt.Sprintf(strings.NewReplacer("%%", "%%", "%w", "%v").Replace(format), kept...)
}

// Common returns the message of an error without the node's own details, marked anywhere in the chain
// of errors.
func Common(err error) string {
	switch e := err.(type) { //nolint:errorlint // each link of the chain is looked at by itself
	case nil:
		return ""
	case interface{ Common() string }:
		return e.Common()
	case *net.OpError:
		return e.Op + " " + e.Net + ": " + Common(e.Err)
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
// common text.
func replaced(text string, wrapped ...error) string {
	for _, inner := range wrapped {
		if inner != nil && inner.Error() != "" {
			text = strings.Replace(text, inner.Error(), Common(inner), 1)
		}
	}
	return text
}
