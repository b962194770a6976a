package hostbuilder

import "syscall"

// Windows has neither sessions nor signals. Nothing is run there: Look refuses it.

func ownSession() *syscall.SysProcAttr { return nil }

func kill(int, syscall.Signal) {}
