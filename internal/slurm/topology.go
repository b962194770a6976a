package slurm

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/dsbuild/dsbuild/inventory"
)

// Switches returns each node's switch (topology/tree) or block (topology/block). The map is empty if
// the cluster has no topology.
func Switches(ctx context.Context) (map[string]string, error) {
	out, _, err := Program{Name: "scontrol", Args: []string{"show", "topology"}}.Output(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading Slurm's topology: %w", err)
	}
	return parseTopology(out)
}

// parseTopology reads scontrol's lines, one for each switch or block. A switch of a higher level
// lists the nodes of all switches below it.
func parseTopology(text string) (map[string]string, error) {
	found := make(map[string]string)
	for line := range strings.Lines(text) {
		values := make(map[string]string)
		for word := range strings.FieldsSeq(line) {
			key, value, _ := strings.Cut(word, "=")
			values[key] = value
		}
		name := values["BlockName"]
		if values["Level"] == "0" {
			name = values["SwitchName"]
		}
		if name == "" || values["Nodes"] == "" || values["Nodes"] == "(null)" {
			continue
		}
		nodes, err := inventory.Expand(values["Nodes"])
		if err != nil {
			return nil, fmt.Errorf("unexpected output of scontrol show topology: %.200q: %w", line, err)
		}
		for _, n := range nodes {
			found[n] = cmp.Or(found[n], name)
		}
	}
	return found, nil
}
