package inventory_test

import (
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/inventory"
)

// Options.User and Options.Python are for nodes that have none, in any format.
func TestOptionsSetWhatIsOpen(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"gpu1 slots=8\n":                              "train /opt/bin/python",
		"nodes: [{hosts: gpu1, user: ops}]\n":         "ops /opt/bin/python",
		"nodes: [{hosts: gpu1, python: python3}]\n":   "train python3",
		"nodes: [{hosts: gpu1, python: /x/python}]\n": "train /x/python",
	} {
		inv, err := inventory.Open(t.Context(), "-", inventory.Options{
			Stdin: strings.NewReader(text), User: "train", Python: "/opt/bin/python",
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := inv.Hosts[0].User + " " + inv.Hosts[0].Python; got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
