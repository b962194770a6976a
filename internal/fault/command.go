package fault

import (
	"encoding/json"
	"strings"
)

// Command is a dsbuild command in a hint. Its String stands in the hint until Expand writes the command out: the
// package that gives the hint knows what helps; only the command line knows the inventory, the flags and the nodes.
type Command struct {
	Do    string     `json:"do"`              // such as verify; see Deploy for deploy
	Flags []string   `json:"flags,omitempty"` // with their values: --deps bundle
	Wheel *WheelFile `json:"wheel,omitempty"` // for deploy, what to install, if known here
	Nodes []string   `json:"nodes,omitempty"` // the nodes to change; none: those with the hint
}

// WheelFile is the wheel that a command installs, as far as it is known. One without a name is the user's choice.
type WheelFile struct {
	Path   string `json:"path,omitempty"` // on the control node; empty if unknown
	Name   string `json:"name,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
}

// Setting is a setting in a hint. "set python: in inventory.yaml to …" is one of nodes, for which formats of inventories
// have different keys, and some have none; "set folder: in environment.yaml to …" is one of an environment, which is to be
// locked again.
type Setting struct {
	Key string `json:"key"` // of nodes, as in dsbuild's own inventories; folder or interpreter, of an environment
	To  string `json:"to"`  // in words
}

// Deploy is the command that installs again what the running command is about: deploy, ship or env deploy.
func Deploy(flags ...string) Command { return Command{Do: "deploy", Flags: flags} }

// Set is a setting of nodes, by its key in dsbuild's own inventories; to is in words.
func Set(key, to string) Setting { return Setting{key, to} }

// SetFolder is the setting of the directory that holds an environment on nodes; to is in words.
func SetFolder(to string) Setting { return Setting{"folder", to} }

// SetInterpreter is the setting of an environment's Python; to is in words.
func SetInterpreter(to string) Setting { return Setting{"interpreter", to} }

// slot is the form of a Command or a Setting in a hint: JSON between control characters, which no hint has itself.
type slot struct {
	Command *Command `json:"command,omitempty"`
	Setting *Setting `json:"setting,omitempty"`
}

const (
	slotBegins = "\x02"
	slotEnds   = "\x03"
)

func (s slot) String() string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // it holds only strings
	}
	return slotBegins + string(text) + slotEnds
}

// String returns the command's slot.
func (c Command) String() string { return slot{Command: &c}.String() }

// String returns the setting's slot.
func (s Setting) String() string { return slot{Setting: &s}.String() }

// Expand replaces the commands and settings in a hint by their texts.
func Expand(hint string, command func(Command) string, setting func(Setting) string) string {
	var out strings.Builder
	for {
		before, rest, ok := strings.Cut(hint, slotBegins)
		out.WriteString(before)
		if !ok {
			return out.String()
		}
		text, after, _ := strings.Cut(rest, slotEnds)
		var s slot
		if err := json.Unmarshal([]byte(text), &s); err == nil && s.Command != nil {
			out.WriteString(command(*s.Command))
		} else if err == nil && s.Setting != nil {
			out.WriteString(setting(*s.Setting))
		}
		hint = after
	}
}
