package fault_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// coded is an error of a package that may not import hint.
type coded struct {
	code int
	try  string
}

func (c coded) Error() string { return "coded" }
func (c coded) Hint() string  { return c.try }
func (c coded) ExitCode() int { return c.code }

func TestOf(t *testing.T) {
	t.Parallel()
	inner := fault.WithHint(fs.ErrNotExist, "create %s", "it")
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"none":        {fs.ErrNotExist, ""},
		"nil":         {nil, ""},
		"with":        {inner, "create it"},
		"wrapped":     {fmt.Errorf("read: %w", inner), "create it"},
		"outermost":   {fault.WithHint(fmt.Errorf("read: %w", inner), "look"), "look"},
		"joined":      {errors.Join(errors.New("a"), inner), "create it"},
		"of a method": {fmt.Errorf("x: %w", coded{try: "try this"}), "try this"},
		"added":       {fault.AddHint(errors.New("a"), "b"), "b"},
		"added to it": {fault.AddHint(inner, ""), "create it"},
		"with a sign": {fault.AddHint(errors.New("a"), "100%s"), "100%s"},
	} {
		if got := fault.Hint(c.err); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if fault.WithHint(nil, "look") != nil || fault.AddHint(nil, "look") != nil {
		t.Error("no error becomes one by a hint")
	}
	if inner.Error() != fs.ErrNotExist.Error() || !errors.Is(inner, fs.ErrNotExist) {
		t.Errorf("the hint changes the error: %v", inner)
	}
}

func TestExitCode(t *testing.T) {
	t.Parallel()
	foreign := exec.CommandContext(t.Context(), "sh", "-c", "exit 3").Run()
	var ended *exec.ExitError
	if !errors.As(foreign, &ended) {
		t.Fatal(foreign)
	}
	for name, c := range map[string]struct {
		err  error
		want int
	}{
		"none":                  {errors.New("a"), 0},
		"nil":                   {nil, 0},
		"asked":                 {fmt.Errorf("x: %w", fault.WithHint(coded{code: 4}, "look")), 4},
		"coded":                 {fmt.Errorf("x: %w", fault.WithCode(fmt.Errorf("%w", coded{code: 4}), 3)), 3},
		"coded nil":             {fault.WithCode(nil, 3), 0},
		"first of several":      {errors.Join(errors.New("a"), coded{code: 2}, coded{code: 4}), 2},
		"of a program":          {fmt.Errorf("make: %w", foreign), 0},
		"beside a program's":    {fmt.Errorf("%w: %w", foreign, coded{code: 4}), 4},
		"outside of a program":  {fmt.Errorf("%w", &outer{foreign}), 2},
		"an error that has nil": {&outer{}, 2},
	} {
		if got := fault.ExitCode(c.err); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// outer is an error with a code around another error.
type outer struct{ error }

func (o *outer) Error() string { return "outer" }
func (o *outer) Unwrap() error { return o.error }
func (o *outer) ExitCode() int { return 2 }
