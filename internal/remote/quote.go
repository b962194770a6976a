package remote

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Quote returns s as one word of a POSIX shell. It cannot express NUL, but no argument of a program
// can contain NUL either.
func Quote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// word matches words that need no quotes after the command word, where "=" is not an assignment.
var word = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// Word returns s as one word of a POSIX shell, quoted only if needed. It must not be the first word of a command.
func Word(s string) string {
	if word.MatchString(s) {
		return s
	}
	return Quote(s)
}

var (
	envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	// plain matches words that need no quotes, which keeps commands readable in logs and process
	// lists. It excludes "=", because a first word with "=" would be an assignment.
	plain = regexp.MustCompile(`^[A-Za-z0-9_@%+:,./-]+$`)
)

// SetupFailed is what the node prints on stderr, before the exit status, when the setup line fails
// and the command does not run.
const SetupFailed = "setup line exited with status"

// EndShell is three lines at the beginning of a program's input on a node. A startup file may start a shell that reads
// the input as commands. Such a shell reports that there is no command MARK, and exits before it executes the rest. The
// last line ends an interactive Python.
const EndShell = "MARK\nexit\nexit()\n"

// CommandLine returns the line for the remote shell that runs cmd. Every login shell (POSIX, fish, csh
// and tcsh) reads it alike: words that are special in any of them are encoded, and /bin/sh decodes them.
func CommandLine(cmd Command) (string, error) {
	program, err := programLine(cmd)
	if err != nil {
		return "", err
	}
	script, err := checkLine(setupLine(cmd.Setup) + "exec " + program)
	const decode = `/bin/sh -c 'eval "$(printf %b "$1")"' sh `
	switch {
	case err != nil:
		return "", err
	case cmd.Setup == "" && !strings.ContainsAny(program, "\n\r\\!"):
		return program, nil
	case cmd.Setup == "":
		return decode + encode(script), nil
	}
	// A setup line may use functions of the login shell (module, conda), so a POSIX login shell runs it
	// itself. csh fails at undefined variables, and so does a POSIX shell whose start file has set -u or -e. fish
	// has no such options and continues with /bin/sh.
	return `/bin/sh -c 'case $SHELL in *csh) exit 1; esac' && set +eu 2>/dev/null && test -n "$BASH_VERSION$ZSH_VERSION$KSH_VERSION" && eval "` +
		"`printf %b " + encode(script) + "`" + `" || ` + decode + encode(script), nil
}

// plainBytes are the characters that stand for themselves in single quotes of every shell.
const plainBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+:,./- ="

// encode returns text as one word, in single quotes, of characters that are plain in every shell. The
// argument %b of printf decodes it. Each command to each node goes through here.
func encode(text string) string {
	var b strings.Builder
	b.WriteByte('\'')
	for i := range len(text) {
		if c := text[i]; strings.IndexByte(plainBytes, c) >= 0 {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'\\', '0', '0' + c>>6, '0' + c>>3&7, '0' + c&7})
		}
	}
	b.WriteByte('\'')
	return b.String()
}

// setupLine returns the lines that run before the program's line.
func setupLine(setup string) string {
	if setup == "" {
		return ""
	}
	// The braces keep a setup line of several commands together, and the newline ends a comment in
	// it. If the setup fails, the program must not run in an incomplete environment.
	return fmt.Sprintf("{ %s\n} || { c=$?; echo \"%s $c\" >&2; exit $c; }\n", setup, SetupFailed)
}

// Exports returns lines for a POSIX shell that set variables.
func Exports(env map[string]string) (string, error) {
	words, err := assignments(env)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, w := range words {
		b.WriteString("export " + w + "\n")
	}
	return checkLine(b.String())
}

// assignments returns variables as words for a POSIX shell: NAME='VALUE'.
func assignments(env map[string]string) ([]string, error) {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !envName.MatchString(name) {
			return nil, fmt.Errorf("invalid variable name %q", name)
		}
		words = append(words, name+"="+Quote(env[name]))
	}
	return words, nil
}

// programLine returns the line of the program with its variables, without the setup.
func programLine(cmd Command) (string, error) {
	if len(cmd.Argv) == 0 {
		return "", fmt.Errorf("no command to run")
	}
	words, err := assignments(cmd.Env)
	if err != nil {
		return "", err
	}
	if len(words) > 0 {
		words = slices.Insert(words, 0, "env")
	}
	for i, w := range cmd.Argv {
		if i == 0 || !plain.MatchString(w) { // a bare first word could be a reserved word or an alias
			w = Quote(w)
		}
		words = append(words, w)
	}
	return strings.Join(words, " "), nil
}

func checkLine(line string) (string, error) {
	if strings.ContainsRune(line, 0) {
		return "", fmt.Errorf("NUL byte in command")
	}
	return line, nil
}
