package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// Ensure prints which engine dsbuild would use. Where none is reachable it
// brings up its own, if the user may.
func Ensure(ctx context.Context, l Layout, con *console, stdout io.Writer) error {
	finder := engine.NewFinder("", func(format string, args ...any) { con.say("engine", format, args...) })
	found, err := finder.Find(ctx)
	var none *engine.NotFoundError
	if errors.As(err, &none) && finder.Env == "" {
		if err := checkMachine(l); err != nil {
			return &noEngineError{none, err}
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
