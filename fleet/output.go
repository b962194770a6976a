package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/connect"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// loggedConn is a connection with a log.
type loggedConn struct {
	remote.Conn
	log *Log
}

// Put implements remote.Conn.
func (c loggedConn) Put(ctx context.Context, up remote.Upload) error {
	c.log.Line("put", fmt.Sprintf("%s, %s", up.Path, ui.Size(up.Size)))
	err := c.Conn.Put(ctx, up)
	c.log.Line("end", outcome(err))
	return err
}

// Run implements remote.Runner.
func (c loggedConn) Run(ctx context.Context, cmd remote.Command) error {
	c.log.Line("run", asked(cmd))
	out, errs := &lines{log: c.log, kind: "out", to: cmd.Stdout}, &lines{log: c.log, kind: "err", to: cmd.Stderr}
	cmd.Stdout, cmd.Stderr = out, errs
	err := c.Conn.Run(ctx, cmd)
	out.end()
	errs.end()
	c.log.Line("end", outcome(err))
	return err
}

func outcome(err error) string {
	if err != nil {
		return ui.OneLine(err.Error())
	}
	return "done"
}

// asked describes a command for the log: without the values of variables, and with the size of an
// embedded program instead of its text.
func asked(cmd remote.Command) string {
	var words []string
	for _, w := range cmd.Argv {
		if strings.Contains(w, "\n") {
			w = fmt.Sprintf("[program of %s]", ui.Size(int64(len(w))))
		}
		words = append(words, connect.HideValues(w))
	}
	text := strings.Join(words, " ")
	if cmd.About != "" {
		text += "\nrequest: " + cmd.About
	}
	if cmd.Setup != "" {
		text += "\nsetup: " + connect.HideValues(cmd.Setup)
	}
	if names := slices.AppendSeq(slices.Clone(cmd.EnvNames), maps.Keys(cmd.Env)); len(names) > 0 {
		slices.Sort(names)
		text += "\nenv: " + strings.Join(names, " ")
	}
	return text
}

// lines is a Writer that passes on the output of a program and logs it line by line.
type lines struct {
	log  *Log
	kind string
	to   io.Writer // may be nil

	mu   sync.Mutex
	line []byte
	long int // bytes of the line that are dropped
}

// Write implements io.Writer.
func (w *lines) Write(b []byte) (int, error) {
	w.take(b)
	if w.to == nil {
		return len(b), nil
	}
	return w.to.Write(b)
}

func (w *lines) take(b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(b) > 0 {
		line, rest, whole := bytes.Cut(b, []byte("\n"))
		room := min(len(line), 2*maxLine-len(w.line)) // no secret may be cut before the log hides it
		w.line = append(w.line, line[:room]...)
		w.long += len(line) - room
		if b = rest; whole {
			w.note()
		}
	}
}

// note logs the current line, which is complete.
func (w *lines) note() {
	kind, line, long := w.kind, string(w.line), w.long
	answer, ok := node.Unmark(w.line)
	w.line, w.long = w.line[:0], 0
	if ok {
		kind, line = "answer", line[len(line)-len(answer):]
		var said struct {
			Pip []string `json:"pip"`
		}
		if long == 0 && strings.HasPrefix(line, `{"pip":`) && json.Unmarshal([]byte(line), &said) == nil && said.Pip != nil {
			kind, line = "pip", strings.Join(said.Pip, "\n")
		}
	}
	if line != "" { // an empty line precedes each message
		w.log.add(kind, line, long)
	}
}

// end logs the last line once the program has ended.
func (w *lines) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.line) > 0 {
		w.note()
	}
}
