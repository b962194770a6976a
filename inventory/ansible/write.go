package ansible

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Literal writes a value so that an INI inventory gives it back: a text as it is
// where that does not look like something else, else as a Python literal. A
// value is a string, an int, a []any or a map[string]any.
func Literal(value any) string {
	text, ok := value.(string)
	if ok && text != "" && text == strings.TrimSpace(text) && !strings.ContainsFunc(text, special) && literal(text) == any(text) {
		return text
	}
	return python(value)
}

// special reports whether a character may not stand in a line as it is.
func special(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa1 || r == 0x2028 || r == 0x2029 }

// python is a value as a Python literal.
func python(value any) string {
	switch v := value.(type) {
	case string:
		return pythonText(v)
	case []any:
		all := make([]string, len(v))
		for i, one := range v {
			all[i] = python(one)
		}
		return "[" + strings.Join(all, ", ") + "]"
	case map[string]any:
		var all []string
		for _, k := range slices.Sorted(maps.Keys(v)) {
			all = append(all, pythonText(k)+": "+python(v[k]))
		}
		return "{" + strings.Join(all, ", ") + "}"
	case int:
		return strconv.Itoa(v)
	}
	return "None"
}

// pythonText is a text as a Python literal, in single quotes where that needs no
// escape.
func pythonText(text string) string {
	quote := '\''
	if strings.ContainsRune(text, quote) && !strings.ContainsRune(text, '"') {
		quote = '"'
	}
	var out strings.Builder
	out.WriteRune(quote)
	for _, r := range text {
		switch {
		case r == quote || r == '\\':
			out.WriteRune('\\')
			out.WriteRune(r)
		case r == '\n':
			out.WriteString(`\n`)
		case r == '\t':
			out.WriteString(`\t`)
		case special(r):
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			out.WriteRune(r)
		}
	}
	out.WriteRune(quote)
	return out.String()
}

// Quote writes a word so that Split gives it back.
func Quote(word string) string {
	switch {
	case word != "" && !strings.ContainsAny(word, " \t\r\n'\"\\#"):
		return word
	case !strings.Contains(word, "'"):
		return "'" + word + "'"
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(word) + `"`
}
