package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// Ensure makes an engine run and prints its name: an engine that answers, else one in a
// container, else dsbuild's own. It returns a *noEngineError if none of these works. It does not
// replace an engine that the user chose.
func Ensure(ctx context.Context, l Layout, con *console, stdout io.Writer) error {
	finder := engine.NewFinder("", func(format string, args ...any) { con.printLine("engine", format, args...) })
	found, err := finder.Find(ctx)
	if err == nil {
		err = startContainer(ctx, found, con)
	}
	if tried := failedAttempts(found, err); tried != nil && finder.Env == "" && ctx.Err() == nil {
		if own := checkMachine(l); own != nil {
			none := &noEngineError{tried, own}
			fmt.Fprintln(stdout, none)
			return none
		}
		for _, a := range tried {
			if a.Where == found.How {
				con.printLine("engine", "%s: %s; using dsbuild's own engine", a.Where, a.Why)
			}
		}
		if err = Up(ctx, l, con); err == nil {
			found, err = finder.Find(ctx)
		}
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "Dagger engine %s: %s\n", engineVersion, found.How)
	return nil
}

// startContainer starts the engine's container, if the engine runs in one.
func startContainer(ctx context.Context, found engine.Engine, con *console) error {
	container, ok := found.Container()
	if !ok {
		return nil
	}
	return container.Up(ctx, func(line string) { con.printLine("engine", "%s", line) })
}

// failedAttempts returns the container clients with which no engine started; nil if the error is
// another one.
func failedAttempts(found engine.Engine, err error) []engine.Attempt {
	var none *engine.NotFoundError
	var image *engine.ImageError
	var container *engine.ContainerError
	switch {
	case errors.As(err, &none):
		return none.Attempts
	case errors.As(err, &image), errors.As(err, &container):
		return []engine.Attempt{{Where: found.How, Why: err.Error(), Hint: fault.Hint(err)}}
	}
	return nil
}
