package submit

import (
	"bytes"
	"errors"
	"io"
	"os"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/launch/why"
)

// longest is the maximum of an unfinished line in memory.
const longest = 64 << 10

// output follows the file that a job writes.
type output struct {
	name  string
	to    io.Writer
	file  *os.File
	rest  []byte // an unfinished line
	blame *Blame
	signs *why.Scanner // of all lines
}

// copyNew copies the new output since the last call. It ignores a missing file.
func (o *output) copyNew() error {
	if o.name == "" {
		return nil
	}
	if err := o.openFile(); o.file == nil || err != nil {
		return err
	}
	buffer := make([]byte, 32<<10)
	for {
		n, err := o.file.Read(buffer)
		if werr := o.takeText(buffer[:n]); werr != nil {
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

// openFile opens the file, and reopens it if the job truncated it after a restart.
func (o *output) openFile() error {
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

// takeText prints complete lines.
func (o *output) takeText(text []byte) error {
	o.rest = append(o.rest, text...)
	for {
		line, rest, found := bytes.Cut(o.rest, []byte("\n"))
		if !found && len(o.rest) <= longest {
			return nil
		}
		if err := o.printLine(line); err != nil {
			return err
		}
		o.rest = rest
	}
}

func (o *output) printLine(line []byte) error {
	text := ui.Clean(string(line))
	if b, found := parseBlame(text); found && o.blame == nil {
		o.blame = &b
	}
	if o.signs == nil {
		o.signs = why.NewScanner(-1)
	}
	o.signs.Add(text)
	_, err := io.WriteString(o.to, text+"\n")
	return err
}

// close prints an unfinished last line. It may be called again.
func (o *output) close() error {
	if o.file != nil {
		o.file.Close()
	}
	rest := o.rest
	if o.rest = nil; len(rest) == 0 {
		return nil
	}
	return o.printLine(rest)
}
