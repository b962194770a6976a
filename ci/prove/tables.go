package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/compat/evidence"
)

// formatEvidence writes a table of evidence, with a line for each op and each file.
func formatEvidence(t evidence.Table, origin compat.Origin, date string) (string, error) {
	ops, err := object(t.Ops)
	if err != nil {
		return "", err
	}
	files, err := object(t.Files)
	return fmt.Sprintf("{\n  \"source\": %q,\n  \"date\": %q,\n  \"port\": %q,\n  \"ops\": %s,\n  \"files\": %s\n}\n",
		origin.Source, date, t.Port, ops, files), err
}

// object writes a map with a line for each of its values.
func object[T any](all map[string]T) (string, error) {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		value, err := json.Marshal(all[key])
		if err != nil {
			return "", err
		}
		lines = append(lines, fmt.Sprintf("    %q: %s", key, value))
	}
	return "{\n" + strings.Join(lines, ",\n") + "\n  }", nil
}

// setRelease writes the row of a release into the table of releases, as the first one if the table lacks it.
func setRelease(text string, d compat.DeepSpeed) (string, error) {
	changed, err := json.Marshal(d.Changed)
	if err != nil {
		return "", err
	}
	row := fmt.Sprintf(`    {"deepspeed": %q, "sha256": %q, "changed": %s}`, d.Version, d.SHA256, changed)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, fmt.Sprintf(`    {"deepspeed": %q,`, d.Version)) {
			if strings.HasSuffix(line, ",") {
				row += ","
			}
			lines[i] = row
			return strings.Join(lines, "\n"), nil
		}
	}
	for i, line := range lines {
		if strings.TrimSpace(line) == `"releases": [` {
			return strings.Join(slices.Insert(lines, i+1, row+","), "\n"), nil
		}
	}
	return "", errors.New("no releases in " + deepSpeedFile)
}
