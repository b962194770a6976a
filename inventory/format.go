package inventory

import (
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/yamldoc"
)

// format is the file format of an inventory.
type format string

const (
	ownYAML     format = "dsbuild's own YAML"
	hostfile    format = "a DeepSpeed hostfile (host slots=N)"
	hostList    format = "a list of hosts (gpu[01-16], or gpu01:8 for 8 GPUs)"
	ofAnsible   format = "an Ansible inventory"
	ansibleList format = "the output of ansible-inventory --list"
)

// yamlFamily is a guess: only the parsed document shows whether the YAML is dsbuild's or
// Ansible's.
const yamlFamily format = ""

var (
	hostfileLine = regexp.MustCompile(`^\S+\s+(?i:(max[-_])?slots?)\s*=`)
	// hostfileSlip matches lines that neither a list of hosts nor Ansible has: NAME 8.
	hostfileSlip = regexp.MustCompile(`^[^\s=]+\s+[^\s=]+(\s|$)`)
	// yamlLine matches the start of a line that can only be YAML: a key, an entry of a list, a
	// document.
	yamlLine = regexp.MustCompile(`^("[^"]*"|'[^']*'|[^\s"'=\[\]]+)\s*:(\s|$)|^-(\s|$)|^---|^%|^\{`)
	// hostWord matches a word of a list of hosts. In brackets, a colon is Ansible's.
	hostWord = regexp.MustCompile(`^[^\s=:\[\]]*(\[[^\s=:\]]*\]?[^\s=:\[\]]*)*(:\d+)?$`)
	// section matches a line of an INI file that begins a section.
	section = regexp.MustCompile(`^\[[^\]]*[^\]0-9,-][^\]]*\]`)
)

// comment matches a comment at the end of a line.
var comment = regexp.MustCompile(`\s#.*$`)

// withoutComment returns a line without a comment at its end and the space around it.
func withoutComment(line string) string {
	return strings.TrimSpace(comment.ReplaceAllString(line, ""))
}

// guess detects the format from lines of text. yamlNamed is set if the file has a YAML extension.
func guess(lines []string, yamlNamed bool) format {
	var said []string
	for _, line := range lines {
		if line = withoutComment(line); line != "" && line[0] != '#' && line[0] != ';' {
			said = append(said, line)
		}
	}
	switch {
	case len(said) == 0 || yamlLine.MatchString(said[0]):
		return yamlFamily
	case slices.ContainsFunc(said, section.MatchString),
		slices.ContainsFunc(said, func(line string) bool { return strings.Contains(line, " ansible_") }):
		return ofAnsible
	case slices.ContainsFunc(said, hostfileLine.MatchString):
		return hostfile
	case yamlNamed:
		return yamlFamily
	case !slices.ContainsFunc(said, func(line string) bool { return !hostWord.MatchString(line) }):
		return hostList
	case slices.ContainsFunc(said, hostfileSlip.MatchString):
		return hostfile
	}
	return ofAnsible // almost any line is valid in it
}

// hasAnsibleGroups reports whether a YAML document looks like an inventory of
// Ansible: groups with hosts, children or vars, or the configuration of a plugin.
func (r *reader) hasAnsibleGroups(body yamldoc.Node) bool {
	for _, group := range r.Keys(body) {
		if group.Key == "all" || group.Key == "plugin" {
			return true
		}
		for _, part := range r.Keys(group.Node) {
			if slices.Contains([]string{"hosts", "children", "vars"}, part.Key) {
				return true
			}
		}
	}
	return false
}

// ownKey reports whether a key of the document shows that it is dsbuild's. A group of Ansible's
// may be called nodes, but it does not hold a list.
func ownKey(p yamldoc.Pair) bool {
	switch p.Key {
	case "defaults", "known_hosts", "policy":
		return true
	}
	return p.Key == "nodes" && yamldoc.IsList(p.Node)
}
