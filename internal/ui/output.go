package ui

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
)

// JSON writes v as one indented JSON document, for --json.
func JSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// Table writes rows below a header, in aligned columns.
func Table(w io.Writer, header []string, rows [][]string) error {
	var out strings.Builder
	tabs := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		cells := lists.Map(row, cleanLine)
		fmt.Fprintln(tabs, strings.Join(cells, "\t"))
	}
	if err := tabs.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(out.String()) {
		if _, err := io.WriteString(w, strings.TrimRight(line, " \n")+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// PrintError writes the last lines of a failed command: the message and, if the error
// carries one, the hint. Errors joined together are printed one by one.
func PrintError(w io.Writer, err error) {
	if err == nil {
		return
	}
	// Print only a plain errors.Join one by one: other errors with several causes have a text of
	// their own.
	joined, ok := err.(interface{ Unwrap() []error })
	if ok && err.Error() == errors.Join(joined.Unwrap()...).Error() {
		for _, one := range joined.Unwrap() {
			PrintError(w, one)
		}
		return
	}
	// Errors while writing are dropped: there is nowhere left to report them.
	fmt.Fprintf(w, "dsbuild: %s\n", strings.TrimRight(Clean(err.Error()), "\n"))
	if text := fault.Hint(err); text != "" {
		fmt.Fprintf(w, "hint: %s\n", Clean(text))
	}
}
