package script

import (
	"strconv"
	"strings"
)

// Char is a byte of a word after the shell's expansions. If Ref is set, it stands for a
// text that only the run knows.
type Char struct {
	Byte byte
	Ref  *Ref
	// At is its place in the file. The value of a variable has the place of the
	// assignment.
	At     int
	kind   charKind
	quoted bool // a shell does not split it or read it as syntax
}

type charKind uint8

const (
	charByte  charKind = iota
	charRef            // Ref is set
	charMark           // no text, but it makes an empty word: ""
	charBreak          // between the elements of an array: always a new word
)

// Ref stands for a text that is unknown before the run.
type Ref struct {
	// Name is the variable's name, "" for the output of commands and for
	// arithmetic.
	Name string
	// Default is the default in ${NAME:-default}, or nil.
	Default *Word
	// Output are the commands in $(...).
	Output []*Command
	// output is the text of the first of them. It is kept because the commands may hold
	// other Refs, and those others again.
	output string
	// Uses are the unknown variables in an arithmetic expression, also by way of
	// other expressions; not more than maxUses.
	Uses []*Ref
	// Highest is the greatest value of arithmetic with a rest, such as 10000 + X % 20000; 0: not known.
	Highest int
	// Depth is the Command.Depth of the shell that expands it.
	Depth int
	// Hidden is an assignment without export in another shell: this shell does
	// not have the variable.
	Hidden *Assignment
	// Assigned: the script sets the variable to an unknown value.
	Assigned bool
	// Required: the shell stops if the variable is not set: ${NAME:?}.
	Required bool
	// Alternate: empty if the variable is not set: ${NAME:+x}.
	Alternate bool
	// Edited: a changed value: ${NAME%,*}, ${#NAME}.
	Edited bool
	// Index is the known index of an array's element: 1 for ${NAME[1]}; @ if the text may be
	// several words: "${NAME[@]}".
	Index string
}

// Word is a word after the shell's expansions.
type Word struct {
	Chars []Char
	At    int // the word's place in the file; its Chars may have other places
}

// Literal returns the word's text, and whether all of it is known.
func (w Word) Literal() (string, bool) {
	var out strings.Builder
	for _, c := range w.Chars {
		if c.Ref != nil {
			return "", false
		}
		out.WriteByte(c.Byte)
	}
	return out.String(), true
}

// Text writes the word for a reader, with $NAME for unknown parts.
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

// String writes the unknown text as in a script, the first part of a very long one.
func (r *Ref) String() string {
	switch {
	case r.Name != "":
		return "$" + r.Name[:min(len(r.Name), maxRef)]
	case len(r.Output) > 0:
		return "$(" + r.output + ")"
	}
	return "$((...))"
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

// Origin returns the place of the word's text in the file.
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

// HasPrefix reports whether the word begins with the text.
func (w Word) HasPrefix(prefix string) bool {
	if len(w.Chars) < len(prefix) {
		return false
	}
	for i := range len(prefix) {
		if w.Chars[i].Ref != nil || w.Chars[i].Byte != prefix[i] {
			return false
		}
	}
	return true
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

// Fields splits the word at blanks.
func (w Word) Fields() []Word {
	loose := make([]Char, len(w.Chars))
	for i, c := range w.Chars {
		c.quoted = false
		loose[i] = c
	}
	return splitFields(loose, w.At)
}

// splitFields splits expanded text into words as the shell does. at is the place of the
// expanded text.
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
		case c.kind == charBreak, c.kind == charByte && !c.quoted && isBlank(c.Byte):
			flush()
		case c.kind == charMark:
			started = true
		default:
			current, started = append(current, c), true
		}
	}
	flush()
	return words
}

func isBlank(b byte) bool { return b == ' ' || b == '\t' || b == '\n' }

// joinChars makes one word of expanded text, as in an assignment.
func joinChars(chars []Char, at int) Word {
	w := Word{At: at}
	for _, c := range chars {
		switch c.kind {
		case charMark:
		case charBreak:
			w.Chars = append(w.Chars, Char{Byte: ' ', At: c.At})
		default:
			w.Chars = append(w.Chars, c)
		}
	}
	return w
}
