package fault

import (
	"encoding/json"
	"strings"
)

// Command is a dsbuild command in a hint. Its String is a placeholder, which Expand replaces by the command: the
// package that writes the hint knows what helps, and only the command line knows inventory, flags and nodes.
type Command struct {
	Do    string     `json:"do"`              // such as verify; see Deploy for deploy
	Flags []string   `json:"flags,omitempty"` // with their values: --deps bundle
	Wheel *WheelFile `json:"wheel,omitempty"` // for deploy, what to install, if known here
	Nodes []string   `json:"nodes,omitempty"` // the nodes to change; none: those with the hint
}

// WheelFile is the wheel that a command installs, as far as it is known. If it has no name, the user chooses it.
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

// Deploy is the command that repeats the running command's installation: deploy, ship or env deploy.
func Deploy(flags ...string) Command { return Command{Do: "deploy", Flags: flags} }

// Set returns a setting of nodes, by its key in dsbuild's own inventories. to describes the value.
func Set(key, to string) Setting { return Setting{key, to} }

// SetFolder returns the setting of an environment's directory on nodes. to describes the value.
func SetFolder(to string) Setting { return Setting{"folder", to} }

// SetInterpreter returns the setting of an environment's Python. to describes the value.
func SetInterpreter(to string) Setting { return Setting{"interpreter", to} }

// slot returns the placeholder of a Command or a Setting: JSON between control characters, which no hint contains.
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

// Expand replaces the placeholders in a hint.
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
