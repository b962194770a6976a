package planner

import (
	"reflect"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

// The host builder has one base, this machine: another one is wrong usage, which is told before the
// machine is inspected.
func TestBaseWithTheHostBuilder(t *testing.T) {
	t.Parallel()
	p, err := openPlanner(t, Host, "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Plan(t.Context(), "", wheel.Request{Base: "debian:12"})
	if fault.ExitCode(err) != 2 || !strings.Contains(err.Error(), "--base debian:12 cannot be used with --builder host") || p.backend.machine != nil {
		t.Errorf("%v, code %d", err, fault.ExitCode(err))
	}
}

// Ops that are written as one text are those of a list, also with spaces; archs are not, and the error
// says how to write them.
func TestListsInOneText(t *testing.T) {
	t.Parallel()
	want, err := requestOf("arch 8.0", "arch 9.0", "ops cpu_adam", "ops utils")
	if err != nil {
		t.Fatal(err)
	}
	for _, lines := range [][]string{
		{"arch 8.0;9.0", "ops cpu_adam,utils"},
		{"arch 8.0", "arch 9.0", "ops cpu_adam, utils"},
		{"arch 9.0", "arch 8.0", "ops  cpu_adam", "ops utils "},
	} {
		if got, err := requestOf(lines...); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v", lines, got, err)
		}
	}
	for _, text := range []string{"8.0,9.0", "8.0, 9.0", "9.0 8.0"} {
		if _, err := requestOf("arch " + text); fault.ExitCode(err) != 2 || !strings.Contains(err.Error(), `entries must be separated by ";"`) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
