package lint

import (
	"net/url"
	"path/filepath"
)

// SARIF is a document of the Static Analysis Results Interchange Format, 2.1.0, with
// the fields that CI systems read.
type SARIF map[string]any

// NewSARIF makes a document of findings. Version is that of the program.
func NewSARIF(version string, all []Finding) SARIF {
	type object = map[string]any
	text := func(s string) object { return object{"text": s} }
	rules, results, index := []object{}, []object{}, map[string]int{}
	for i, r := range Rules() {
		index[r.ID] = i
		rules = append(rules, object{
			"id": r.ID, "shortDescription": text(r.Title), "fullDescription": text(r.Why), "help": text(r.Fix),
			"defaultConfiguration": object{"level": r.Severity},
		})
	}
	for _, f := range all {
		// Names are relative to the working folder, as CI systems expect it, or file:///.
		uri := url.URL{Path: filepath.ToSlash(filepath.Clean(f.File))}
		if filepath.IsAbs(f.File) {
			uri.Scheme = "file"
		}
		results = append(results, object{
			"ruleId": f.Rule, "ruleIndex": index[f.Rule], "level": f.Severity, "message": text(f.Message + ". Fix: " + f.Fix),
			"locations": []object{{"physicalLocation": object{
				"artifactLocation": object{"uri": uri.String()},
				"region":           object{"startLine": f.Line, "startColumn": f.Column},
			}}},
		})
	}
	tool := object{"name": "dsbuild launch lint", "rules": rules}
	if version != "" {
		tool["version"] = version
	}
	return SARIF{
		"$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
		"version": "2.1.0",
		"runs":    []object{{"tool": object{"driver": tool}, "columnKind": "unicodeCodePoints", "results": results}},
	}
}
