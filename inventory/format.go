package inventory

import (
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/dsbuild/dsbuild/internal/yamldoc"
	"github.com/dsbuild/dsbuild/inventory/ansible"
)

// format is the file format of an inventory.
type format string

const (
	ownYAML     format = "dsbuild's own YAML"
	hostfile    format = "a DeepSpeed hostfile (host slots=N)"
	expressions format = "node expressions, as Slurm writes them"
	ansibleINI  format = "an Ansible inventory (INI)"
	ansibleYAML format = "an Ansible inventory (YAML)"
	ansibleList format = "the output of ansible-inventory --list"
)

// ofAnsible reports whether the program ansible-inventory reads the format.
func (f format) ofAnsible() bool { return f == ansibleINI || f == ansibleYAML }

// yamlFamily is a guess: only the parsed document shows whether the YAML is dsbuild's or
// Ansible's.
const yamlFamily format = ""

var (
	hostfileLine = regexp.MustCompile(`^\S+\s+slots\s*=`)
	// yamlLine matches the start of a line that can only be YAML: a key, an entry of a list, a
	// document.
	yamlLine = regexp.MustCompile(`^("[^"]*"|'[^']*'|[^\s"'=\[\]]+)\s*:(\s|$)|^-(\s|$)|^---|^%|^\{`)
	// nodeExpression matches a word that can only be a node expression: it has a comma, or
	// brackets without the colon of Ansible.
	nodeExpression = regexp.MustCompile(`^[^\s=:]*[,\[][^\s=:]*$`)
)

// guess detects the format from lines of text. yamlNamed reports that the file has the extension
// of a YAML file.
func guess(lines []string, yamlNamed bool) format {
	var said []string
	for _, line := range lines {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' && line[0] != ';' {
			said = append(said, line)
		}
	}
	switch {
	case len(said) == 0 || yamlLine.MatchString(said[0]):
		return yamlFamily
	case slices.ContainsFunc(said, ansible.IsSection):
		return ansibleINI
	case slices.ContainsFunc(said, hostfileLine.MatchString):
		return hostfile
	case yamlNamed:
		return yamlFamily
	case !slices.ContainsFunc(said, func(s string) bool { return strings.ContainsAny(s, " \t:=") }) &&
		slices.ContainsFunc(said, nodeExpression.MatchString):
		return expressions
	}
	return ansibleINI // almost any line is valid in it
}

// yamlFormat reports whether a YAML document is dsbuild's inventory or Ansible's.
func yamlFormat(body ast.Node) format {
	if slices.ContainsFunc(yamldoc.MappingValues(body), ownKey) {
		return ownYAML
	}
	if hasAnsibleGroups(body) {
		return ansibleYAML
	}
	return ownYAML
}

// hasAnsibleGroups reports whether a YAML document looks like an inventory of
// Ansible: groups with hosts, children or vars, or the configuration of a plugin.
func hasAnsibleGroups(body ast.Node) bool {
	for _, group := range yamldoc.MappingValues(body) {
		name := group.Key.GetToken().Value
		if name == "all" || name == "plugin" {
			return true
		}
		for _, part := range yamldoc.MappingValues(group.Value) {
			if slices.Contains([]string{"hosts", "children", "vars"}, part.Key.GetToken().Value) {
				return true
			}
		}
	}
	return false
}

// ownKey reports whether a key of the document shows that it is dsbuild's. A group of Ansible's
// may be called nodes, but it does not hold a list.
func ownKey(v *ast.MappingValueNode) bool {
	switch v.Key.GetToken().Value {
	case "defaults", "known_hosts", "policy":
		return true
	case "nodes":
		_, isList := v.Value.(*ast.SequenceNode)
		return isList
	}
	return false
}
