package compat

import (
	"testing"

	"github.com/dsbuild/dsbuild/wheel"
)

func tables(t *testing.T) *Tables {
	t.Helper()
	tables, err := NewTables()
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

func archs(t *testing.T, list ...string) []wheel.Arch {
	t.Helper()
	a, err := wheel.ParseArchs(list)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
