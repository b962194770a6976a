package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"github.com/dsbuild/dsbuild/internal/testkit/child"
	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// Ensure makes sure that an engine runs and prints its name: a running engine, else a container client with
// which the Dagger client starts one, else dsbuild's own. It returns a *noEngineError if none of these works.
// It does not replace an engine that the user chose.
func Ensure(ctx context.Context, l Layout, con *console, stdout io.Writer) error {
	finder := engine.NewFinder("", func(format string, args ...any) { con.printLine("engine", format, args...) })
	found, err := finder.Find(ctx)
	if err == nil && finder.Env == "" && strings.HasPrefix(found.Address, "image+") {
		err = bringImage(ctx, con, found.How)
	}
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

// bringImage makes sure that a container client has the engine's image, or returns a
// *engine.NotFoundError: a daemon alone starts no engine where its registry is out of reach.
func bringImage(ctx context.Context, con *console, client string) error {
	if exec.CommandContext(ctx, client, "image", "inspect", engine.Image).Run() == nil {
		return nil
	}
	con.printLine("engine", "%s pull %s", client, engine.Image)
	out, err := exec.CommandContext(ctx, client, "pull", engine.Image).CombinedOutput()
	if err == nil {
		return nil
	}
	why := fmt.Sprintf("cannot pull %s (%s)", engine.Image, child.LastLines(out, 1))
	con.printLine("engine", "%s %s", client, why)
	return &engine.NotFoundError{Attempts: []engine.Attempt{{Where: client, Why: why}}}
}
