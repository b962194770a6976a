package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// addGlobalFlags declares the flags of every command. They set what a.reporter shows.
func addGlobalFlags(root *cobra.Command, show *ui.Settings) {
	flags := root.PersistentFlags()
	flags.BoolVarP(&show.Quiet, "quiet", "q", false, "Print only results, warnings and errors")
	flags.BoolVarP(&show.Verbose, "verbose", "v", false, "Print complete plans, and the output of builds and nodes")
	choiceVar(flags, &show.Color, "color", ui.ColorAuto, []ui.Color{ui.ColorAuto, ui.ColorAlways, ui.ColorNever},
		"Color messages; auto: on a terminal, unless NO_COLOR is set")
	flags.BoolVar(&show.NoProgress, "no-progress", false, "Hide spinners and progress bars")
	flags.BoolP("help", "h", false, "Show help")
	inGroup(root, groupGlobal, "quiet", "verbose", "color", "no-progress", "help")
	siteFlags(root, "color", "no-progress")
	flagsExclude(root, "quiet", "verbose", "choose one")
}

// siteRule marks a flag that a site sets once, in the variable of its name.
const siteRule = "dsbuild_site"

// siteFlags marks flags whose default comes from a variable: DSBUILD_FORKS for --forks. The variable of a repeatable
// flag has values separated by white space. A value from a variable is a default: unlike a flag on the command line,
// it may have no effect, and the flag overrides it.
func siteFlags(cmd *cobra.Command, names ...string) {
	for _, name := range names {
		annotate(cmd, name, siteRule, variableOf(name))
	}
}

// variableOf returns the variable of a flag.
func variableOf(flag string) string {
	return "DSBUILD_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// setFromEnvironment sets the site flags that the command line does not set. An empty variable is ignored.
func setFromEnvironment(flags *pflag.FlagSet) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		rule := f.Annotations[siteRule]
		if len(rule) != 1 || f.Changed || err != nil {
			return
		}
		text := strings.TrimSpace(os.Getenv(rule[0]))
		if text == "" {
			return
		}
		var failed error
		if list, ok := f.Value.(pflag.SliceValue); ok {
			failed = list.Replace(strings.Fields(text))
		} else {
			failed = f.Value.Set(text)
		}
		if failed != nil {
			why, hint := wantedValue(f, failed)
			err = &usageError{err: fmt.Errorf("%s: invalid value %q: %s", rule[0], text, why), hint: hint}
		}
	})
	return err
}

// atLeast parses a number that is not smaller than least.
func atLeast(least int) func(string) (int, error) {
	return func(text string) (int, error) {
		n, err := strconv.Atoi(text)
		if err == nil && n < least {
			err = fmt.Errorf("want %d or more", least)
		}
		return n, err
	}
}

// atLeastSecond parses a duration of a second or more.
func atLeastSecond(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err == nil && d < time.Second {
		err = errors.New("want 1s or more")
	}
	return d, err
}

// parsedValue is a flag whose Set reports an invalid value, from the command line or from a variable.
type parsedValue[T any] struct {
	value *T
	kind  string
	text  string
	parse func(string) (T, error)
}

// parsedVar declares a flag with a value that parse returns. An error of parse begins with "want".
func parsedVar[T any](flags *pflag.FlagSet, p *T, name, value, kind string, parse func(string) (T, error), usage string) {
	v := &parsedValue[T]{p, kind, value, parse}
	if value != "" {
		if err := v.Set(value); err != nil {
			panic(err) // the default is invalid
		}
	}
	flags.Var(v, name, usage)
}

// Set implements pflag.Value.
func (v *parsedValue[T]) Set(text string) error {
	value, err := v.parse(text)
	if err == nil {
		*v.value, v.text = value, text
	}
	return err
}

// String implements pflag.Value.
func (v *parsedValue[T]) String() string { return v.text }

// Type implements pflag.Value.
func (v *parsedValue[T]) Type() string { return v.kind }
