//go:build unix

package ui

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// understandsEscapes reports whether a terminal knows control sequences: any
// but one that calls itself dumb.
func understandsEscapes(int) bool { return true }

// terminal is the one that the process was started from.
type terminal struct{ *os.File }

func openTerminal() (*terminal, error) {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return &terminal{f}, nil
}

// prepare makes the terminal ready for a question: what was typed before it is
// thrown away, and what is typed is hidden unless echo. Ctrl-C stays what it is;
// Ctrl-Z would leave the terminal as it is now, and is ignored.
func (t *terminal) prepare(echo bool) (restore func(), err error) {
	var before *unix.Termios
	err = t.control(func(fd int) error {
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
		_ = t.control(func(fd int) error { return unix.IoctlSetTermios(fd, setTermios, before) })
		signal.Reset(syscall.SIGTSTP)
	}, nil
}

// control runs do with the terminal's descriptor; File.Fd would make reading it
// uninterruptible.
func (t *terminal) control(do func(fd int) error) error {
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
