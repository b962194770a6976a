package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// Ensure makes an engine run and prints its name: an engine that answers, else a container client in
// which the Dagger client starts one, else dsbuild's own. It returns a *noEngineError if none of these works. It does not
// replace an engine that the user chose.
func Ensure(ctx context.Context, l Layout, con *console, stdout io.Writer) error {
	finder := engine.NewFinder("", func(format string, args ...any) { con.printLine("engine", format, args...) })
	found, err := finder.Find(ctx)
	if tried := (&engine.NotFoundError{}); errors.As(err, &tried) && finder.Env == "" && ctx.Err() == nil {
		if own := checkMachine(l); own != nil {
			none := &noEngineError{tried.Attempts, own}
			fmt.Fprintln(stdout, none)
			return none
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
