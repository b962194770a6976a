//go:build full

package main

import (
	"reflect"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
)

// What the table says of the ops of each release is what its source distribution on the package index says.
func TestFullStableReleases(t *testing.T) {
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, d := range tables.DeepSpeeds {
		if d.Changed == nil {
			continue
		}
		compared++
		r, err := fetch(t.Context(), "https://pypi.org/simple", d.Version)
		if err != nil {
			t.Fatal(err)
		}
		if got := tables.Evidence.Judge(r.sources); r.sha256 != d.SHA256 || !reflect.DeepEqual(got, d.Changed) {
			t.Errorf("%s: %v, want %v", d.Version, got, d.Changed)
		}
		t.Logf("result: DeepSpeed %s: %v", d.Version, d.Changed)
	}
	if compared < 4 {
		t.Errorf("%d releases are compared, want 0.19.5 and all newer ones", compared)
	}
}
