package diagnostic

import "strings"

// YAML rewords a message of the YAML parser, and adds a hint for a frequent mistake.
func YAML(message string) (text, hint string) {
	if strings.HasPrefix(message, "found character '\t'") || strings.Contains(message, "tab character") {
		return "a tab: YAML allows only spaces for indentation", "replace the tabs at the beginning of lines by spaces"
	}
	return message, ""
}
