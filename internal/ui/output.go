package ui

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf16"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// JSON writes v as one indented JSON document, for --json. Characters that control a terminal or hide text are escaped.
func JSON(w io.Writer, v any) error {
	enc := json.NewEncoder(escaping{w})
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// escaping is a Writer of JSON that escapes control characters, which are only in strings.
type escaping struct{ w io.Writer }

func (e escaping) Write(b []byte) (int, error) {
	if !bytes.ContainsFunc(b, isHidden) {
		return e.w.Write(b)
	}
	var out strings.Builder
	for _, r := range string(b) {
		if !isHidden(r) {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&out, `\u%04x`, unit)
		}
	}
	_, err := io.WriteString(e.w, out.String())
	return len(b), err
}

func isHidden(r rune) bool { return r != '\n' && isControl(r) }

// PrintError writes the last lines of a failed command: the message and, if the error
// carries one, the hint as write returns it; write may be nil. Errors joined together are printed one by one.
func PrintError(w io.Writer, err error, write func(hint string) string) {
	if err == nil {
		return
	}
	// Print only a plain errors.Join one by one: other errors with several causes have their own
	// text.
	joined, ok := err.(interface{ Unwrap() []error })
	if ok && err.Error() == errors.Join(joined.Unwrap()...).Error() {
		for _, one := range joined.Unwrap() {
			PrintError(w, one, write)
		}
		return
	}
	// Errors while writing are dropped: there is nowhere left to report them.
	fmt.Fprintf(w, "dsbuild: %s\n", strings.TrimRight(Clean(err.Error()), "\n"))
	if hint := fault.Hint(err); hint != "" {
		if write != nil {
			hint = write(hint)
		}
		fmt.Fprintf(w, "hint: %s\n", Clean(hint))
	}
}
