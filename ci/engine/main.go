// Command engine installs, starts and stops a real Dagger engine on a Debian machine that has no
// Docker and cannot reach an image registry.
//
//	bin/ci/engine check   # which engine would be used; exit 3 if there is none
//	bin/ci/engine ensure  # use an engine that answers; without one, do up
//	make engine      # install missing parts, start, exit 0 when it answers
//	bin/ci/engine down    # stop it in an orderly way: the cache survives
//	bin/ci/engine status  # one line; exit 0 when it runs, 1 otherwise
//	bin/ci/engine base trixie  # the tar that workloads start from, made if missing
//	bin/ci/engine image engine.tar  # the installed engine as an image for docker load
//
// The engine belongs to the user, not to the checkout. All its files are in one state directory
// (see Layout), together with a copy of this program called enginectl. That copy starts an
// installed engine later without a checkout.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/dsbuild/dsbuild/internal/fault"
)

const usage = `usage: enginectl check|ensure|up|start|down|status
       enginectl base SUITE
       enginectl image FILE

  check   report which engine ensure would use, without changing anything; exits
          3 if there is none: build without an engine (--builder host)
  ensure  make an engine available and report which: a running one, a container,
          or dsbuild's own, as up does; exits 3 if that is impossible
  up      install what is missing or outdated, then start the engine
  start   start an installed engine without installing anything
  down    stop the engine and keep its cache
  status  print one line about the engine; exits 0 if it runs, 1 otherwise
  base    print the root file system tar of a Debian or Ubuntu release, created
          if it is missing: bookworm, bullseye, trixie, bionic, jammy, noble,
          resolute
  image   write the installed engine as an image for docker, podman and nerdctl;
          needs a checkout of dsbuild
`

// errQuiet makes the program exit 1 with nothing more to say.
var errQuiet = errors.New("not running")

func main() { os.Exit(runCommandLine(os.Args[1:], os.Stdout, os.Stderr)) }

func runCommandLine(args []string, stdout, stderr io.Writer) int {
	err := dispatchCommand(args, stdout, stderr)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errQuiet):
		return 1
	case errors.Is(err, errUsage):
		fmt.Fprint(stderr, usage)
		return 2
	}
	var none *noEngineError
	if errors.As(err, &none) { // which is the answer, printed on stdout
		return none.ExitCode()
	}
	fmt.Fprintf(stderr, "error: %v\n", err)
	if h := fault.Hint(err); h != "" {
		fmt.Fprintf(stderr, "hint: %s\n", h)
	}
	var coded interface{ ExitCode() int }
	switch {
	case errors.Is(err, context.Canceled):
		return 130
	case errors.As(err, &coded):
		return coded.ExitCode()
	}
	return 1
}

var errUsage = errors.New("usage")

func dispatchCommand(args []string, stdout, stderr io.Writer) error {
	if len(args) == 2 {
		switch args[0] { // the path by which the program calls itself
		case "supervise":
			return superviseEngine(At(args[1]))
		case "inner":
			return runInNamespaces(At(args[1]))
		}
	}
	named := len(args) == 2 && (args[0] == "base" || args[0] == "image")
	if len(args) != 1 && !named {
		return errUsage
	}
	l, err := Default()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	con := newConsole(stderr)
	switch args[0] {
	case "base", "image":
		if !named {
			return errUsage
		}
		if args[0] == "image" {
			return MakeImage(ctx, l, con, args[1])
		}
		return MakeBase(ctx, l, con, stdout, args[1])
	case "up":
		return Up(ctx, l, con)
	case "check":
		return Check(ctx, l, stdout)
	case "ensure":
		return Ensure(ctx, l, con, stdout)
	case "start":
		return StartInstalled(ctx, l, con)
	case "down":
		return Down(ctx, l, con)
	case "status":
		text, running := Describe(l)
		fmt.Fprintln(stdout, text)
		if !running {
			return errQuiet
		}
		return nil
	}
	return errUsage
}
