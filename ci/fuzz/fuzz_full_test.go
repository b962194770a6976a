//go:build full

package main

import (
	"bytes"
	"testing"
	"time"
)

// TestFullFuzz fuzzes each target for a minute.
func TestFullFuzz(t *testing.T) {
	t.Chdir("../..")
	var out bytes.Buffer
	if err := fuzzAll(t.Context(), time.Minute, &out); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
}
