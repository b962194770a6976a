package mistake

import "strings"

// YAML words what the YAML parser says, with a hint where people often make
// the mistake.
func YAML(message string) (text, hint string) {
	if strings.HasPrefix(message, "found character '\t'") || strings.Contains(message, "tab character") {
		return "a tab: YAML is indented by spaces", "replace the tabs at the beginning of lines by spaces"
	}
	return message, ""
}
