// Package gotest reads the output of go test -json.
package gotest

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
)

// Event is a line of go test -json; go doc test2json describes it.
type Event struct {
	Action, Package, Test, Output string
	ImportPath, FailedBuild       string // of a package that does not compile
	Elapsed                       float64
}

// Read calls event with each event, and writes each line that is not an event to other.
func Read(r io.Reader, other io.Writer, event func(Event)) error {
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		var e Event
		if json.Unmarshal(line, &e) == nil && e.Action != "" {
			event(e)
		} else {
			_, _ = other.Write(line)
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}
