package ui

import "golang.org/x/sys/windows"

// understandsEscapes makes a console understand control sequences, which those
// before Windows 10 cannot.
func understandsEscapes(fd int) bool {
	var mode uint32
	if windows.GetConsoleMode(windows.Handle(fd), &mode) != nil {
		return false
	}
	return windows.SetConsoleMode(windows.Handle(fd), mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
