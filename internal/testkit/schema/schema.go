// Package schema compares JSON documents of dsbuild with their schemas, docs/schema/NAME.json.
package schema

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Dir returns the folder of the schemas, seen from the folder of any package of the module.
func Dir(t testing.TB) string {
	t.Helper()
	at, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for at != filepath.Dir(at) {
		if dir := filepath.Join(at, "docs", "schema"); isFolder(dir) {
			return dir
		}
		at = filepath.Dir(at)
	}
	t.Fatal("no folder docs/schema")
	return ""
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// Check fails if a document is not what the schema NAME.json says.
func Check(t testing.TB, name string, document []byte) {
	t.Helper()
	if err := Validate(t, name, document); err != nil {
		t.Errorf("the document is not what docs/schema/%s.json says: %v\n%s", name, err, document)
	}
}

// Validate is Check for a caller that reports the error itself.
func Validate(t testing.TB, name string, document []byte) error {
	t.Helper()
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	is, err := compiler.Compile(filepath.Join(Dir(t), name+".json"))
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	if err != nil {
		return err
	}
	return is.Validate(value)
}
