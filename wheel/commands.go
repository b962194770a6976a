package wheel

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// entryPointsName is the file in dist-info from which installers make commands.
const entryPointsName = "entry_points.txt"

// commandName matches a name that every installer reads in the same way, without a path.
var commandName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// entryValue matches the value of an entry point: module:function, extras. In a line with more
// text, pip searches name and value anywhere.
var entryValue = regexp.MustCompile(
	`^[\p{L}_][\p{L}\p{N}_.]*(:[\p{L}_][\p{L}\p{N}_.]*)?[ \t]*(\[[A-Za-z0-9_., -]*\])?$`)

// Commands returns the names of the files that an installer writes to an environment's bin
// directory: scripts, and commands generated from entry points.
func (a *Archive) Commands() ([]string, error) {
	names, _, err := a.readCommands()
	return names, err
}

// readCommands returns the names of the commands. damage describes errors in entry_points.txt and
// in the scripts' paths.
func (a *Archive) readCommands() (names, damage []string, err error) {
	for _, m := range a.members {
		if rest, ok := strings.CutPrefix(installPath(m.Name), "/scripts/"); ok {
			name, inFolder, isFolder := strings.Cut(rest, "/")
			names = append(names, name)
			if isFolder {
				damage = append(damage, fmt.Sprintf("the command %.80q is in a directory, which installers treat differently",
					name+"/"+inFolder))
			}
		}
	}
	entries, more, err := a.readEntryPoints()
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		names = append(names, e.Name)
	}
	damage = append(damage, more...)
	slices.Sort(names)
	return slices.Compact(names), damage, nil
}

// entryPoint is a command that installers generate for a function.
type entryPoint struct {
	Name   string
	Module string // dotted
	Object string // dotted, within the module
}

// entryPoints returns the commands that installers generate, sorted by name.
func (a *Archive) entryPoints() ([]entryPoint, error) {
	entries, damage, err := a.readEntryPoints()
	if err == nil && len(damage) > 0 {
		err = a.damagedError(errors.New(damage[0]))
	}
	if err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(x, y entryPoint) int { return strings.Compare(x.Name, y.Name) })
	return entries, nil
}

// readEntryPoints reads console_scripts and gui_scripts. Installers' parsers differ, so an
// ambiguous line is damage. Format: the entry points specification (PyPA).
func (a *Archive) readEntryPoints() (entries []entryPoint, damage []string, err error) {
	text, err := a.ReadFile(a.inDistInfo(entryPointsName), maxText)
	if err != nil && !errors.Is(err, errNoMember) {
		return nil, nil, a.damagedError(err)
	}
	section := ""
	for i, line := range strings.Split(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n") {
		line = strings.Trim(line, " \t")
		name, value, isEntry := strings.Cut(line, "=")
		name = strings.TrimRight(name, " \t")
		switch {
		case strings.ContainsFunc(strings.ReplaceAll(line, "\t", ""), isControl):
			damage = append(damage, fmt.Sprintf("%s: line %d has a control character", entryPointsName, i+1))
		case line == "" || line[0] == '#' || line[0] == ';':
		case line[0] == '[' && line[len(line)-1] == ']':
			section = strings.TrimSpace(strings.Trim(line, "[]"))
		case line[0] == '[' || !isEntry:
			damage = append(damage, fmt.Sprintf("%s: line %d is neither a section nor an entry: %.80q",
				entryPointsName, i+1, line))
		case section != "console_scripts" && section != "gui_scripts":
		case !entryValue.MatchString(strings.TrimLeft(value, " \t")):
			damage = append(damage, fmt.Sprintf("%s: line %d is not NAME = MODULE:FUNCTION: %.80q", entryPointsName, i+1, line))
			fallthrough
		default:
			value, _, _ = strings.Cut(value, "[") // extras
			module, object, _ := strings.Cut(strings.Trim(value, " \t"), ":")
			entries = append(entries, entryPoint{name, module, strings.TrimRight(object, " \t")})
		}
	}
	return entries, damage, nil
}

// verifyCommands checks that no command replaces a program of the environment itself, or is outside
// of the bin directory.
func (a *Archive) verifyCommands() (damage []string, err error) {
	names, damage, err := a.readCommands()
	for _, name := range names {
		switch {
		case !commandName.MatchString(name):
			damage = append(damage, fmt.Sprintf("the name of the command %.80q could refer to another directory", name))
		case ownedCommand.MatchString(name):
			damage = append(damage, fmt.Sprintf("the command %s would replace one of the environment's own programs", name))
		}
	}
	return damage, err
}
