package submit

import (
	"bytes"
	"errors"
	"io"
	"os"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// longest is how much of a line without an end is kept in memory.
const longest = 64 << 10

// output follows the file that a job writes.
type output struct {
	name  string
	to    io.Writer
	file  *os.File
	rest  []byte // a line that has not ended yet
	blame *Blame
}

// more passes on what has come since the last time. A file that is not there, or
// cannot be seen from here, has nothing.
func (o *output) more() error {
	if o.name == "" {
		return nil
	}
	if err := o.open(); o.file == nil || err != nil {
		return err
	}
	buffer := make([]byte, 32<<10)
	for {
		n, err := o.file.Read(buffer)
		if werr := o.take(buffer[:n]); werr != nil {
			return werr
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// open opens the file, again if the job began anew and with it the file.
func (o *output) open() error {
	if o.file != nil {
		at, err := o.file.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		if info, err := os.Stat(o.name); err != nil || info.Size() >= at {
			return nil
		}
		o.file.Close()
		o.file, o.rest = nil, nil
	}
	f, err := os.Open(o.name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	o.file = f
	if err != nil {
		o.file = nil
	}
	return err
}

// take passes on whole lines.
func (o *output) take(text []byte) error {
	o.rest = append(o.rest, text...)
	for {
		line, rest, found := bytes.Cut(o.rest, []byte("\n"))
		if !found && len(o.rest) <= longest {
			return nil
		}
		if err := o.print(line); err != nil {
			return err
		}
		o.rest = rest
	}
}

func (o *output) print(line []byte) error {
	text := ui.Clean(string(line))
	if b, found := blamed(text); found && o.blame == nil {
		o.blame = &b
	}
	_, err := io.WriteString(o.to, text+"\n")
	return err
}

// close passes on a last line without an end.
func (o *output) close() error {
	if o.file != nil {
		o.file.Close()
	}
	if len(o.rest) == 0 {
		return nil
	}
	return o.print(o.rest)
}
