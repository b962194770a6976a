package inventory

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/dsbuild/dsbuild/internal/lineerr"
)

// The schema must name the keys that the reader knows, place by place.
func TestSchemaNamesTheKeys(t *testing.T) {
	type object struct {
		AdditionalProperties *bool                      `json:"additionalProperties"`
		Properties           map[string]json.RawMessage `json:"properties"`
		Required             []string                   `json:"required"`
	}
	var doc struct {
		object
		Defs struct {
			Defaults, Node, Env object
			Settings            map[string]json.RawMessage
		} `json:"$defs"`
	}
	schema, err := os.ReadFile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(schema, &doc); err != nil {
		t.Fatal(err)
	}
	keysOf := func(p place, own ...string) []string {
		for _, k := range keysAt(p) {
			own = append(own, k.name)
		}
		return own
	}
	for _, c := range []struct {
		what   string
		object object
		want   []string
	}{
		{"inventory", doc.object, topKeys()},
		{"defaults", doc.Defs.Defaults, keysOf(inDefaults)},
		{"node", doc.Defs.Node, keysOf(inNode, "hosts")},
		{"env", doc.Defs.Env, keysOf(inEnv, "name")},
		{"settings", object{AdditionalProperties: new(bool), Properties: doc.Defs.Settings}, keysOf(inDefaults | inNode | inEnv)},
	} {
		var got []string
		for name := range c.object.Properties {
			got = append(got, name)
		}
		slices.Sort(got)
		slices.Sort(c.want)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: the schema has %v, the reader knows %v", c.what, got, c.want)
		}
		if c.object.AdditionalProperties == nil || *c.object.AdditionalProperties {
			t.Errorf("%s: the schema lets unknown keys pass", c.what)
		}
	}
	for what, required := range map[string][]string{"nodes": doc.Required, "hosts": doc.Defs.Node.Required, "name": doc.Defs.Env.Required} {
		if !slices.Equal(required, []string{what}) {
			t.Errorf("required is %v, want %s", required, what)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"port", "proxy_jump", "python", "user"}
	for word, want := range map[string]string{"prt": "port", "pyhton": "python", "proxyjump": "proxy_jump", "usr": "user", "x": "", "hostname": "", "": ""} {
		if got := lineerr.Nearest(word, known); got != want {
			t.Errorf("lineerr.Nearest(%q) = %q, want %q", word, got, want)
		}
	}
}
