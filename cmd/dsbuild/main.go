// Command dsbuild builds DeepSpeed wheels with compiled operators, deploys
// them to the nodes of a cluster and proves what every node runs.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline/planner"
)

func main() {
	// An ssh that dsbuild has started calls it to ask for a password.
	if code, asked := remote.Askpass(os.Args[1:], os.Stdout); asked {
		os.Exit(code)
	}
	useAccountHome()
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// app holds the things that every command gets: the streams, the reporter that owns stderr, and the
// version. Commands never use os.Stdout, os.Stderr or os.Stdin.
type app struct {
	stdin    io.Reader
	stdout   io.Writer       // results
	stderr   io.Writer       // progress and log; prefer reporter
	reporter ui.Reporter     // closed by run, not by commands
	console  *ui.Console     // the reporter, for global flags; nil in tests of the command tree
	show     ui.Settings     // global flags
	hints    hints           // writes out the commands in hints
	prompt   remote.Prompter // asks at the terminal, or nil without one. Closed by run
	version  string
}

// run executes the command line and returns the exit code. It prints the error; nothing else
// does.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	style := ui.FromEnvironment(stderr)
	stdout, stderr = withoutBrokenPipe(stdout), withoutBrokenPipe(stderr)
	console := ui.New(stderr, style)
	prompt := ui.FindPrompt(console)
	ctx, stop := withInterrupt(ctx, console, prompt.Close)
	defer stop()

	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, reporter: console, console: console, version: "(devel)"}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		a.version = info.Main.Version
	}
	if prompt != nil {
		a.prompt = prompt
	}
	err := executeCommand(ctx, newRootCommand(a), args)
	prompt.Close()
	console.Close()
	if err != nil {
		ui.PrintError(stderr, plainInterrupt(ctx, folderHint(err)), func(hint string) string { return a.hints.expand(hint, "") })
	}
	return exitCode(ctx, err)
}

// executeCommand runs the command that args name. Whatever cobra rejects before the
// command itself starts (flags, arguments, unknown commands) is wrong usage.
func executeCommand(ctx context.Context, root *cobra.Command, args []string) error {
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) { // shells show usages as they are
		setPlainUsages(root, func(_, usage string) string { return usage })
	}
	started := false
	prepare := root.PersistentPreRunE
	root.PersistentPreRunE = func(cmd *cobra.Command, args []string) error {
		started = true
		return prepare(cmd, args)
	}
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	var request *planner.RequestError
	var usage *usageError
	switch {
	case err == nil:
		return nil
	case !started:
		err = wrongUsage(cmd, args, err)
	case errors.As(err, &request) && !errors.As(err, &usage):
		err = &usageError{err: err, hint: request.Hint()}
	}
	if errors.As(err, &usage) && usage.command == "" {
		usage.command = cmd.CommandPath()
	}
	return err
}
