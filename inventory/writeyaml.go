package inventory

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// yaml writes the inventory in dsbuild's own format: dsbuild reads the same inventory back.
func (inv *Inventory) yaml(nodes []nodeEntry) string {
	var out strings.Builder
	if defaults := common(nodes); len(defaults.keys()) > 0 {
		out.WriteString("defaults:\n")
		writeFields(&out, "  ", "  ", defaults)
	}
	if inv.KnownHosts != "" {
		out.WriteString("known_hosts: " + yamlText(inv.KnownHosts) + "\n")
	}
	if inv.Policy != "" {
		out.WriteString("policy: " + yamlText(inv.Policy) + "\n")
	}
	out.WriteString("nodes:\n")
	for len(nodes) > 0 {
		n := alike(nodes)
		entry := nodes[0]
		if n > 1 {
			entry.Hosts = ui.FoldNames(nodeNames(nodes[:n]))
		}
		writeFields(&out, "  - ", "    ", entry)
		nodes = nodes[n:]
	}
	return out.String()
}

// writeFields writes the set fields of an entry, a line each. lead stands before the first and
// indent before the others.
func writeFields(out *strings.Builder, lead, indent string, entry any) {
	v := reflect.ValueOf(entry)
	for i := range v.NumField() {
		key := v.Type().Field(i).Tag.Get("key")
		var text string
		switch field := v.Field(i).Interface().(type) {
		case string:
			if text = yamlText(field); key == "hosts" && plainHosts.MatchString(field) && !yamlWord.MatchString(field) {
				text = field
			}
		case int:
			text = strconv.Itoa(field)
		case []string:
			words := make([]string, len(field))
			for j, w := range field {
				words[j] = yamlText(w)
			}
			text = "[" + strings.Join(words, ", ") + "]"
		case map[string]string:
			var pairs []string
			for _, k := range slices.Sorted(maps.Keys(field)) {
				pairs = append(pairs, k+": "+yamlText(field[k]))
			}
			text = "{" + strings.Join(pairs, ", ") + "}"
		}
		if f := v.Field(i); f.IsZero() || f.Kind() == reflect.Slice && f.Len() == 0 {
			continue
		}
		if envs, ok := v.Field(i).Interface().([]envEntry); ok {
			out.WriteString(lead + key + ":\n")
			for _, e := range envs {
				writeFields(out, indent+"  - ", indent+"    ", e)
			}
		} else {
			out.WriteString(lead + key + ": " + text + "\n")
		}
		lead = indent
	}
}

// plainYAML matches text that needs no quotes: no reader takes it for a number, a date or a
// keyword, and none of its characters is special.
var (
	plainYAML = regexp.MustCompile(`^([A-Za-z_/][A-Za-z0-9_./+=@-]*( [A-Za-z0-9_./+=@-]+)*|[0-9]+(\.[0-9]+){3})$`)
	// plainHosts also allows brackets and commas, which have no meaning outside of a list.
	plainHosts = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.,\[\]-]*$`)
	yamlWord   = regexp.MustCompile(`^(?i:true|false|yes|no|on|off|y|n|null)$`)
)

// yamlText returns a text as a YAML scalar.
func yamlText(s string) string {
	if plainYAML.MatchString(s) && !yamlWord.MatchString(s) {
		return s
	}
	var out strings.Builder
	out.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			out.WriteByte('\\')
			out.WriteRune(r)
		case r == '\n':
			out.WriteString(`\n`)
		case r == '\t':
			out.WriteString(`\t`)
		case r < ' ' || r >= 0x7f && r < 0xa1 || r == 0x2028 || r == 0x2029 || r == 0xfeff:
			fmt.Fprintf(&out, `\u%04X`, r)
		default:
			out.WriteRune(r)
		}
	}
	out.WriteByte('"')
	return out.String()
}

func nodeNames(nodes []nodeEntry) []string {
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Hosts
	}
	return names
}

// alike returns how many nodes at the front one entry can describe: their settings are equal, and
// a range gives their names in this order.
func alike(nodes []nodeEntry) int {
	n := 1
	for n < len(nodes) && nodes[0].sameBut(nodes[n]) {
		n++
	}
	for ; n > 1; n /= 2 {
		names := nodeNames(nodes[:n])
		if again, err := Expand(ui.FoldNames(names)); err == nil && slices.Equal(again, names) {
			break
		}
	}
	return n
}

// sameBut reports whether two nodes differ only in their names.
func (n nodeEntry) sameBut(other nodeEntry) bool {
	if n.Address != "" || other.Address != "" {
		return false
	}
	n.Hosts, other.Hosts = "", ""
	return reflect.DeepEqual(n, other)
}
