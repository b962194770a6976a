//go:build unix

package ui

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// understandsEscapes reports whether a terminal interprets control sequences. Every terminal
// does, unless its type is dumb.
func understandsEscapes(int) bool { return true }

// terminal is the terminal from which the process was started.
type terminal struct{ *os.File }

func openTerminal() (*terminal, error) {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return &terminal{f}, nil
}

// prepareQuestion makes the terminal ready for a question. It discards earlier input, and hides
// the answer unless echo is set. Ctrl-C keeps its effect. Ctrl-Z is ignored, because it would
// leave the terminal in this state.
func (t *terminal) prepareQuestion(echo bool) (restore func(), err error) {
	var before *unix.Termios
	err = t.withDescriptor(func(fd int) error {
		var err error
		if before, err = unix.IoctlGetTermios(fd, getTermios); err != nil {
			return err
		}
		asking := *before
		asking.Lflag |= unix.ICANON | unix.ISIG | unix.ECHO
		asking.Iflag |= unix.ICRNL
		if !echo {
			asking.Lflag &^= unix.ECHO
		}
		return unix.IoctlSetTermios(fd, setTermiosFlush, &asking)
	})
	if err != nil {
		return nil, err
	}
	signal.Ignore(syscall.SIGTSTP)
	return func() {
		_ = t.withDescriptor(func(fd int) error { return unix.IoctlSetTermios(fd, setTermios, before) })
		signal.Reset(syscall.SIGTSTP)
	}, nil
}

// withDescriptor runs do with the terminal's descriptor; File.Fd would make reading it
// uninterruptible.
func (t *terminal) withDescriptor(do func(fd int) error) error {
	raw, err := t.SyscallConn()
	if err != nil {
		return err
	}
	done := error(nil)
	if err := raw.Control(func(fd uintptr) { done = do(int(fd)) }); err != nil {
		return err
	}
	return done
}
