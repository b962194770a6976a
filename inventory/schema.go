package inventory

import _ "embed"

//go:embed schema.json
var schema string

// Schema is the JSON schema of an inventory file, for editors and checkers.
func Schema() string { return schema }
