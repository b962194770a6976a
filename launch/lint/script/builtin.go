package script

import "strings"

// runBuiltin follows a builtin that changes the shell. It returns false for other
// commands.
func runBuiltin(sh *shell, name string, cmd *Command) bool {
	switch name {
	case "unset":
		for _, w := range (starter{}).behindOptions(cmd.Words[1:]) {
			n, _ := w.Literal()
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
		sh.assignUnknown(cmd.At, "OPTARG", cmd.Arg(2))
	case "read":
		sh.assignNamed(starter{values: "dinNptu"}.behindOptions(cmd.Words[1:])...)
	case "mapfile", "readarray":
		sh.assignNamed(starter{values: "dnOsucC"}.behindOptions(cmd.Words[1:])...)
	case "printf":
		if cmd.Arg(1) == "-v" && len(cmd.Words) > 2 {
			sh.assignNamed(cmd.Words[2])
		}
	case "source", ".":
		sh.script.Unread = append(sh.script.Unread, cmd.Words[1:min(2, len(cmd.Words))]...)
	case "eval":
		// The text of eval "$(command)" is unknown from its beginning on.
		if len(cmd.Words) > 1 && len(cmd.Words[1].Chars) > 0 && cmd.Words[1].Chars[0].Ref != nil {
			sh.script.Unread = append(sh.script.Unread, cmd.Words[1])
		}
		return false
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
