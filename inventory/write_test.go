package inventory_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/inventory"
)

// A hostfile holds addresses and slots, and is read again as it was.
func TestHostfile(t *testing.T) {
	inv := read(t, `
defaults: {slots: 8, user: train}
nodes:
  - {hosts: "gpu[1-2]", port: 2222}
  - {hosts: gpu3, address: 10.0.0.3, slots: 4, envs: [{name: a}, {name: b, python: /b/python}]}
`)
	text, err := inv.Hostfile()
	if want := "gpu1 slots=8\ngpu2 slots=8\n10.0.0.3 slots=4\n"; err != nil || text != want {
		t.Errorf("got %q, %v; want %q", text, err, want)
	}
	again, err := inventory.Read(strings.NewReader(text), "-")
	if err != nil || list(again) != "gpu1*8 gpu2*8 10.0.0.3*4" {
		t.Errorf("read again: %v, %v", again, err)
	}
}

func TestHostfileWithout(t *testing.T) {
	inv := read(t, "nodes: [{hosts: 'gpu[1-3],x'}, {hosts: a, address: host, slots: 1}, {hosts: b, address: host, port: 23, slots: 1}]")
	_, err := inv.Hostfile()
	var coded interface{ ExitCode() int }
	want := "a and b have the same address host, but hostfile entries must be unique\n" +
		"gpu[1-3],x: unknown number of GPUs, which a hostfile requires"
	if err == nil || err.Error() != want || !errors.As(err, &coded) || coded.ExitCode() != 2 || fault.Hint(err) == "" {
		t.Errorf("got %v, want %s", err, want)
	}
}
