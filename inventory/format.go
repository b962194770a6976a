package inventory

import (
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/dsbuild/dsbuild/inventory/ansible"
)

// format is what an inventory is written in.
type format string

const (
	ownYAML     format = "dsbuild's own YAML"
	hostfile    format = "a DeepSpeed hostfile (host slots=N)"
	expressions format = "node expressions, as Slurm writes them"
	ansibleINI  format = "an Ansible inventory (INI)"
	ansibleYAML format = "an Ansible inventory (YAML)"
	ansibleList format = "the output of ansible-inventory --list"
)

// ofAnsible reports whether the format is one that the program
// ansible-inventory reads.
func (f format) ofAnsible() bool { return f == ansibleINI || f == ansibleYAML }

// yamlFamily is a guess: whether it is dsbuild's or Ansible's is seen once it is parsed.
const yamlFamily format = ""

var (
	hostfileLine = regexp.MustCompile(`^\S+\s+slots\s*=`)
	// yamlLine is how a line of YAML begins that is no line of anything else: a
	// key, an entry of a list, a document.
	yamlLine = regexp.MustCompile(`^("[^"]*"|'[^']*'|[^\s"'=\[\]]+)\s*:(\s|$)|^-(\s|$)|^---|^%|^\{`)
	// nodeExpression is a word with what only a node expression has: a comma, or
	// brackets without the colon of Ansible.
	nodeExpression = regexp.MustCompile(`^[^\s=:]*[,\[][^\s=:]*$`)
)

// guess tells the format from lines of text; yamlNamed says that the file's
// name is one of YAML.
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
	return ansibleINI // its lines can be nearly anything
}

// yamlFormat tells whose inventory a YAML document is.
func yamlFormat(body ast.Node) format {
	switch n := body.(type) {
	case *ast.MappingNode:
		for _, v := range n.Values {
			if ownKey(v) {
				return ownYAML
			}
		}
	case *ast.MappingValueNode:
		if ownKey(n) {
			return ownYAML
		}
	}
	if ansible.IsYAML(body) {
		return ansibleYAML
	}
	return ownYAML
}

// ownKey reports whether a key of the document says that it is dsbuild's: a
// group of Ansible's may well be called nodes, but it holds no list.
func ownKey(v *ast.MappingValueNode) bool {
	switch v.Key.GetToken().Value {
	case "defaults", "known_hosts":
		return true
	case "nodes":
		_, isList := v.Value.(*ast.SequenceNode)
		return isList
	}
	return false
}
