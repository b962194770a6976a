package script

import "strings"

// runBuiltin follows a builtin that changes the shell. It returns false for other
// commands.
func runBuiltin(sh *shell, name string, cmd *Command) bool {
	var names []string
	for i := 1; i < len(cmd.Words); i++ {
		if arg := cmd.Arg(i); arg != "" && !strings.HasPrefix(arg, "-") {
			names = append(names, arg)
		}
	}
	switch name {
	case "unset":
		for _, n := range names {
			if array, _, element := strings.Cut(n, "["); element {
				sh.forgetVariables(array)
				continue
			}
			sh.env.vars[n] = &variable{unset: true}
		}
	case "set":
		setOptions(sh, cmd)
	case "shift":
		sh.forgetArguments()
	case "getopts":
		sh.forgetVariables("OPTARG", cmd.Arg(2))
	case "read", "mapfile", "readarray":
		sh.forgetVariables(names...)
	case "printf":
		if cmd.Arg(1) == "-v" {
			sh.forgetVariables(cmd.Arg(2))
		}
	case "source", ".":
	default:
		return false
	}
	return true
}

// forgetArguments makes the arguments of the shell or the function unknown.
func (sh *shell) forgetArguments() {
	sh.forgetVariables("1", "2", "3", "4", "5", "6", "7", "8", "9", "@", "*")
}

// setOptions follows set -a and set ARGUMENTS.
func setOptions(sh *shell, cmd *Command) {
	for i := 1; i < len(cmd.Words); i++ {
		switch arg := cmd.Arg(i); {
		case arg == "--" || arg == "" || arg[0] != '-' && arg[0] != '+' && !strings.HasSuffix(cmd.Arg(i-1), "o"):
			sh.forgetArguments()
			return
		case arg == "allexport":
			sh.env.exportAll = strings.HasPrefix(cmd.Arg(i-1), "-")
		case strings.HasPrefix(arg, "-") && !strings.HasPrefix(arg, "--") && strings.Contains(arg, "a"):
			sh.env.exportAll = true
		case strings.HasPrefix(arg, "+") && strings.Contains(arg, "a"):
			sh.env.exportAll = false
		}
	}
}
