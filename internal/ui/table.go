package ui

import (
	"cmp"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/rivo/uniseg"

	"github.com/dsbuild/dsbuild/internal/lists"
)

// Table writes rows below a header, in aligned columns. Without a header, the first cells are titles. If the table is wider
// than the terminal, columns without values are omitted, texts wrap, and the longest cells get separate lines. No word is
// cut, because it may be a name or a number to copy. Without a terminal, a row is one line, for programs such as grep, unless
// $COLUMNS sets a width.
func Table(w io.Writer, header []string, rows [][]string) error {
	t := &table{room: tableWidth(w), header: header != nil}
	if t.header {
		t.add(header)
	}
	for _, row := range rows {
		t.add(lists.Map(row, cleanLine))
	}
	t.fit()
	var out strings.Builder
	t.write(&out)
	_, err := io.WriteString(w, out.String())
	return err
}

// tableWidth returns the number of columns that a table on w may have.
func tableWidth(w io.Writer) int {
	if width, _, ok := terminalSize(w); ok {
		return width
	}
	width, _ := strconv.Atoi(os.Getenv("COLUMNS"))
	return cmp.Or(max(width, 0), math.MaxInt)
}

const (
	columnGap = 2
	hanging   = 2  // indentation of a first cell's further lines
	readable  = 12 // the narrowest column for a text that wraps
	longWord  = 24 // a word that is longer may wrap after its commas
)

// table is a table to be laid out.
type table struct {
	rows   [][]cell
	header bool  // the first row is the header
	room   int   // width of the terminal
	limit  int   // a cell that needs more than this has separate lines
	widths []int // of the columns
}

// cell is a text with its width on one line, and the width that it needs at least.
type cell struct {
	text       string
	indent     int // of its lines after the first
	full, need int
}

func (c cell) hasValue() bool { return c.text != "" && c.text != "-" }

// add adds a row.
func (t *table) add(texts []string) {
	row := make([]cell, len(texts))
	for i, text := range texts {
		c := cell{text: text, full: uniseg.StringWidth(text)}
		if i == 0 {
			c.indent = hanging
		}
		c.need = min(c.full, readable)
		for n, piece := range pieces(text, longWord) {
			wide := widthOf(piece)
			if n > 0 {
				wide += c.indent
			}
			c.need = max(c.need, wide)
		}
		row[i] = c
	}
	t.rows = append(t.rows, row)
}

// fit sets the widths of the columns. If even the least widths exceed the room, the cells that need most leave their columns,
// until the rest fits. A header stays.
func (t *table) fit() {
	full, need := func(c cell) int { return c.full }, func(c cell) int { return c.need }
	t.limit = math.MaxInt
	if t.header && sum(t.measure(full)) > t.room {
		t.dropEmpty()
	}
	t.limit = t.room
	least := t.measure(need)
	for sum(least) > t.room && t.limit > 0 {
		t.limit--
		least = t.measure(need)
	}
	t.widths = t.measure(full)
	for sum(t.widths) > t.room {
		widest := -1 // that can be narrower
		for i, wide := range t.widths {
			if wide > least[i] && (widest < 0 || wide > t.widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		t.widths[widest]--
	}
}

// dropEmpty removes the columns that have no value below the header, except the first.
func (t *table) dropEmpty() {
	for i := len(t.rows[0]) - 1; i > 0; i-- {
		if slices.ContainsFunc(t.rows[1:], func(row []cell) bool { return i < len(row) && row[i].hasValue() }) {
			continue
		}
		for n, row := range t.rows {
			if i < len(row) {
				t.rows[n] = slices.Delete(row, i, i+1)
			}
		}
	}
}

// measure returns the greatest width of each column, of the cells that stay in it.
func (t *table) measure(of func(cell) int) []int {
	var widths []int
	for n, row := range t.rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			if !t.leaves(n, i) {
				widths[i] = max(widths[i], of(c))
			}
		}
	}
	return widths
}

// leaves reports whether a cell has separate lines.
func (t *table) leaves(row, column int) bool {
	return t.rows[row][column].need > t.limit && !(t.header && row == 0)
}

// sum returns the width of a table.
func sum(widths []int) int {
	all := -columnGap
	for _, w := range widths {
		all += w + columnGap
	}
	return all
}

// write writes the cells of each row next to each other. A cell that leaves its column follows on separate lines, below its column
// or as far right as it fits, and the rest of the row follows below it.
func (t *table) write(out *strings.Builder) {
	for n, row := range t.rows {
		var block [][]string // the lines of the cells that are not yet written
		for i, c := range row {
			if overlong := c.need > t.room && i == len(row)-1; !t.leaves(n, i) || overlong {
				block = append(block, c.wrap(t.widths[i]))
				continue
			}
			t.writeBlock(out, block)
			start := min(sum(t.widths[:i])+columnGap, max(0, t.room-c.full))
			for _, line := range c.wrap(t.room - start) {
				out.WriteString(strings.Repeat(" ", start) + line + "\n")
			}
			block = make([][]string, i+1)
			if !slices.ContainsFunc(row[i+1:], cell.hasValue) {
				break
			}
		}
		t.writeBlock(out, block)
	}
}

// writeBlock writes cells next to each other.
func (t *table) writeBlock(out *strings.Builder, cells [][]string) {
	lines := 0
	for _, cell := range cells {
		lines = max(lines, len(cell))
	}
	for n := range lines {
		var line strings.Builder
		for i, cell := range cells {
			text := ""
			if n < len(cell) {
				text = cell[n]
			}
			line.WriteString(text + strings.Repeat(" ", max(0, t.widths[i]-uniseg.StringWidth(text))+columnGap))
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}

// wrap splits the text into lines of at most limit columns, or one word.
func (c cell) wrap(limit int) []string {
	if c.full <= limit {
		return []string{c.text}
	}
	parts := strings.SplitAfter(c.text, ", ") // an item of a list stays on one line
	if slices.ContainsFunc(parts, func(part string) bool { return widthOf(part)+c.indent > limit }) {
		parts = pieces(c.text, limit-c.indent)
	}
	var lines []string
	line := ""
	for _, part := range parts {
		if next := line + part; strings.TrimSpace(line) == "" || widthOf(next) <= limit {
			line = next
			continue
		}
		lines = append(lines, strings.TrimRight(line, " "))
		line = strings.Repeat(" ", c.indent) + part
	}
	return append(lines, strings.TrimRight(line, " "))
}

// pieces splits a text where it may wrap: after spaces, and words longer than limit also after commas.
func pieces(text string, limit int) []string {
	var all []string
	for _, word := range strings.SplitAfter(text, " ") {
		if widthOf(word) > limit {
			all = append(all, strings.SplitAfter(word, ",")...)
		} else {
			all = append(all, word)
		}
	}
	return all
}

// widthOf returns the width of a text without the space at its end.
func widthOf(text string) int { return uniseg.StringWidth(strings.TrimSuffix(text, " ")) }
