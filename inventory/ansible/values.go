package ansible

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// plainText matches text that cannot be a Python literal, except for the words in pythonNames.
// plainNumber matches numbers that Python and dsbuild read alike.
var (
	plainText   = regexp.MustCompile(`^(-?[A-Za-z/~][A-Za-z0-9_./@:+,~=% -]*|[0-9]{1,3}(\.[0-9]{1,3}){3})$`)
	pythonNames = regexp.MustCompile(`True|False|None`)
	plainNumber = regexp.MustCompile(`^(0|[1-9][0-9]{0,17})$`)
)

// isPlainText reports whether Ansible reads a value in an INI file as literal text. Other values
// may be Python literals.
func isPlainText(text string) bool {
	return plainText.MatchString(text) && !strings.HasSuffix(text, " ") && !pythonNames.MatchString(text)
}

// plainValue returns the value of a variable in an INI file: a string or an
// int64. Not ok means that only Ansible can tell the value.
func plainValue(text string) (value any, ok bool) {
	if plainNumber.MatchString(text) {
		n, err := strconv.ParseInt(text, 10, 64)
		return n, err == nil
	}
	return text, isPlainText(text)
}

// Literal writes a value for an INI inventory: plain text unchanged, anything else as a Python
// literal. A value is a string, an int, a []any or a map[string]any.
func Literal(value any) string {
	if text, ok := value.(string); ok && isPlainText(text) {
		return text
	}
	return python(value)
}

// needsEscape reports whether a character must be escaped in a line.
func needsEscape(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa1 || r == 0x2028 || r == 0x2029 }

// python writes a value as a Python literal.
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

// pythonText writes text as a Python literal, in single quotes if that needs no escape.
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
		case needsEscape(r):
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			out.WriteRune(r)
		}
	}
	out.WriteRune(quote)
	return out.String()
}

// Quote quotes a word of a line in such a way that Ansible reads it back.
func Quote(word string) string {
	switch {
	case word != "" && !strings.ContainsAny(word, " \t\r\n'\"\\#"):
		return word
	case !strings.Contains(word, "'"):
		return "'" + word + "'"
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(word) + `"`
}
