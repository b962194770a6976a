package hostbuilder

import "syscall"

// Windows has neither sessions nor signals. Nothing runs there: Look returns an error.

func ownSession() *syscall.SysProcAttr { return nil }

func kill(int, syscall.Signal) {}
