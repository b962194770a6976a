package script

import (
	"slices"
	"strconv"
	"strings"
)

// Char is a byte of an expanded word or, if Ref is set, unknown text.
type Char struct {
	Byte byte
	Ref  *Ref
	// At is its position in the file. A variable's value has the position of the assignment.
	At     int
	mark   bool // no text, but it makes an empty word: ""
	quoted bool // a shell neither splits it nor reads it as syntax
}

// Ref stands for text that is unknown before the run.
type Ref struct {
	// Name is the variable's name, empty for command output and arithmetic.
	Name string
	// text is the source of a Ref without a name, such as $(hostname).
	text string
	// Default is the default in ${NAME:-default}, or nil.
	Default *Word
	// Depth is the Command.Depth of the shell that expands it.
	Depth int
	// Assigned reports whether the script sets the variable, to an unknown value.
	Assigned bool
	// Lost reports whether an outer shell sets the variable without exporting it.
	Lost bool
	// Required reports whether the shell exits if the variable is not set: ${NAME:?}.
	Required bool
	// Edited reports whether an operator changes the value: ${NAME%,*}, ${#NAME}.
	Edited bool
	// Several reports whether the text may be several words: an array's elements, or "$@".
	Several bool
}

// NamesOptions reports whether the text may be options: several words, a part of a template, or a
// variable whose name suggests options.
func (r *Ref) NamesOptions() bool {
	name := strings.ToUpper(r.Name)
	return r.Several || strings.HasPrefix(r.text, "{{") || slices.ContainsFunc([]string{"ARG", "OPT", "FLAG", "PARAM"}, func(part string) bool {
		return strings.Contains(name, part)
	})
}

// String formats the unknown text as in a script, shortened if it is very long.
func (r *Ref) String() string {
	if r.Name != "" {
		return "$" + r.Name[:min(len(r.Name), maxRef)]
	}
	return r.text[:min(len(r.text), maxRef)]
}

// Word is an expanded word.
type Word struct {
	Chars []Char
	At    int // the word's position in the file; its Chars may have other positions
}

// Literal returns the word's text, and whether all of it is known.
func (w Word) Literal() (string, bool) {
	if len(w.Refs()) > 0 {
		return "", false
	}
	return w.Text(), true
}

// Text formats the word for messages, with $NAME for unknown parts.
func (w Word) Text() string {
	var out strings.Builder
	for _, c := range w.Chars {
		if c.Ref == nil {
			out.WriteByte(c.Byte)
			continue
		}
		out.WriteString(c.Ref.String())
	}
	return out.String()
}

// Refs returns the unknown parts of the word.
func (w Word) Refs() []*Ref {
	var refs []*Ref
	for _, c := range w.Chars {
		if c.Ref != nil {
			refs = append(refs, c.Ref)
		}
	}
	return refs
}

// Only returns the Ref if the word is a single Ref, else nil.
func (w Word) Only() *Ref {
	if len(w.Chars) == 1 {
		return w.Chars[0].Ref
	}
	return nil
}

// Origin returns the position of the word's text in the file.
func (w Word) Origin() int {
	if len(w.Chars) > 0 {
		return w.Chars[0].At
	}
	return w.At
}

// Int returns the word as a number.
func (w Word) Int() (int, bool) {
	text, ok := w.Literal()
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	return n, err == nil
}

// HasPrefix reports whether the word begins with prefix.
func (w Word) HasPrefix(prefix string) bool {
	if len(w.Chars) < len(prefix) {
		return false
	}
	text, known := w.Slice(0, len(prefix)).Literal()
	return known && text == prefix
}

// Slice returns a part of the word.
func (w Word) Slice(from, to int) Word {
	part := Word{Chars: w.Chars[from:to], At: w.At}
	if len(part.Chars) > 0 {
		part.At = part.Chars[0].At
	}
	return part
}

// Cut splits the word at the first separator.
func (w Word) Cut(separator byte) (before, after Word, found bool) {
	for i, c := range w.Chars {
		if c.Ref == nil && c.Byte == separator {
			return w.Slice(0, i), w.Slice(i+1, len(w.Chars)), true
		}
	}
	return w, Word{At: w.At}, false
}

// CutLast splits the word at the last separator.
func (w Word) CutLast(separator byte) (before, after Word, found bool) {
	for i := len(w.Chars) - 1; i >= 0; i-- {
		if c := w.Chars[i]; c.Ref == nil && c.Byte == separator {
			return w.Slice(0, i), w.Slice(i+1, len(w.Chars)), true
		}
	}
	return w, Word{At: w.At}, false
}

// splitFields splits expanded text into words as the shell does. at is the position of the text.
func splitFields(chars []Char, at int) []Word {
	var words []Word
	var current []Char
	started := false
	flush := func() {
		if started {
			words = append(words, Word{Chars: current, At: at})
		}
		current, started = nil, false
	}
	for _, c := range chars {
		switch {
		case c.mark:
			started = true
		case c.Ref == nil && !c.quoted && isBlank(c.Byte):
			flush()
		default:
			current, started = append(current, c), true
		}
	}
	flush()
	return words
}

func isBlank(b byte) bool { return b == ' ' || b == '\t' || b == '\n' }
