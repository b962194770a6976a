package ui

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// understandsEscapes makes a console understand control sequences. A console before Windows 10
// cannot.
func understandsEscapes(fd int) bool {
	var mode uint32
	if windows.GetConsoleMode(windows.Handle(fd), &mode) != nil {
		return false
	}
	return windows.SetConsoleMode(windows.Handle(fd), mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}

// terminal is the console that the process was started from.
type terminal struct{ in, out *os.File }

func openTerminal() (*terminal, error) {
	in, err := os.OpenFile("CONIN$", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	out, err := os.OpenFile("CONOUT$", os.O_RDWR, 0)
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return &terminal{in, out}, nil
}

// Read implements io.Reader.
func (t *terminal) Read(b []byte) (int, error) { return t.in.Read(b) }

// Write implements io.Writer.
func (t *terminal) Write(b []byte) (int, error) { return t.out.Write(b) }

// Close implements io.Closer.
func (t *terminal) Close() error { return errors.Join(t.in.Close(), t.out.Close()) }

// prepareQuestion makes the console ready for a question. It discards earlier input, and hides
// the answer unless echo is set.
func (t *terminal) prepareQuestion(echo bool) (restore func(), err error) {
	console := windows.Handle(t.in.Fd())
	var before uint32
	if err := windows.GetConsoleMode(console, &before); err != nil {
		return nil, err
	}
	asking := before | windows.ENABLE_LINE_INPUT | windows.ENABLE_PROCESSED_INPUT | windows.ENABLE_ECHO_INPUT
	if !echo {
		asking &^= windows.ENABLE_ECHO_INPUT
	}
	if err := windows.SetConsoleMode(console, asking); err != nil {
		return nil, err
	}
	_ = windows.FlushConsoleInputBuffer(console) // then earlier input counts
	return func() { _ = windows.SetConsoleMode(console, before) }, nil
}
