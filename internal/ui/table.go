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

// Table writes rows below a header, in aligned columns. Without a header, the first cells are titles. A table that is wider
// than the terminal is made narrower: it loses columns without values, its widest texts wrap, a long first or last cell gets
// its own line, and in the end every cell does. No word is cut, because it may be a name or a number to copy. Without a
// terminal, a row is one line, for programs such as grep, unless $COLUMNS sets a width.
func Table(w io.Writer, header []string, rows [][]string) error {
	all := make([][]string, 0, len(rows)+1)
	if header != nil {
		all = append(all, header)
	}
	for _, row := range rows {
		all = append(all, lists.Map(row, cleanLine))
	}
	var out strings.Builder
	if width := tableWidth(w); len(all) > 0 {
		if header != nil && newGrid(all, math.MaxInt, narrowing{}).total > width {
			all = withoutEmpty(all)
		}
		writeTable(&out, all, width, header == nil)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// withoutEmpty removes the columns that have no value in any row below the header.
func withoutEmpty(rows [][]string) [][]string {
	empty := func(i int) bool {
		return !slices.ContainsFunc(rows[1:], func(row []string) bool { return i < len(row) && row[i] != "-" && row[i] != "" })
	}
	kept := make([][]string, len(rows))
	for i := range rows[0] {
		if i > 0 && empty(i) {
			continue
		}
		for n, row := range rows {
			if i < len(row) {
				kept[n] = append(kept[n], row[i])
			}
		}
	}
	return kept
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
	wrapped   = 2  // the indentation of a first cell's further lines
	readable  = 24 // the least columns for a text that wraps, if there is room
)

// grid is a table with the width of each column.
type grid struct {
	rows   [][]string
	widths []int
	total  int // columns of the whole table
	room   int // columns that it may have
	narrowing
}

// narrowing is a way to make a table narrower.
type narrowing struct {
	least    int  // columns for a text that wraps
	ownLine  bool // a first cell that is longer than its column has its own line
	atCommas bool // texts wrap after commas, too
	longEnd  bool // a last cell with a word that is longer than its column has its own line
}

// writeTable writes a table that fits into width, if no single word is longer. Titles begin the rows of a table without a header.
func writeTable(out *strings.Builder, rows [][]string, width int, titles bool) {
	ways := []narrowing{{least: readable}, {least: readable / 2}}
	if !titles {
		ways = append(ways, narrowing{least: readable, ownLine: true}, narrowing{ownLine: true}, narrowing{ownLine: true, atCommas: true})
	}
	ways = append(ways, narrowing{longEnd: true})
	var g *grid
	for _, way := range ways {
		if g = newGrid(rows, width, way); g.total <= width {
			break
		}
	}
	if g.total <= width || titles {
		g.write(out)
		return
	}
	for _, row := range rows[1:] { // a line for each cell
		writeTable(out, [][]string{{row[0]}}, width, true)
		var cells [][]string
		for i, cell := range row[1:] {
			if cell != "-" {
				cells = append(cells, []string{"  " + rows[0][i+1], cell})
			}
		}
		if len(cells) > 0 {
			writeTable(out, cells, width, true)
		}
	}
}

// newGrid sets the width of the columns. It is the least one if the table is wider than width.
func newGrid(rows [][]string, width int, way narrowing) *grid {
	g := &grid{rows: rows, room: width, narrowing: way}
	least := g.measure()
	if last := len(least) - 1; g.longEnd {
		least[last] = min(least[last], readable)
	}
	if g.ownLine {
		g.widths[0] = g.lead(width - sum(least) + least[0])
		least[0] = g.widths[0]
	}
	for at := 0; at >= 0 && sum(g.widths) > width; {
		at = -1 // the widest column that can be narrower
		for i, wide := range g.widths {
			if wide > least[i] && (at < 0 || wide > g.widths[at]) {
				at = i
			}
		}
		if at >= 0 {
			g.widths[at]--
		}
	}
	g.total = sum(g.widths)
	return g
}

// measure makes each column as wide as its longest cell, and returns the least widths, of the longest words.
func (g *grid) measure() []int {
	var least []int
	for _, row := range g.rows {
		for i, cell := range row {
			if i == len(g.widths) {
				g.widths, least = append(g.widths, 0), append(least, 0)
			}
			full := uniseg.StringWidth(cell)
			g.widths[i], least[i] = max(g.widths[i], full), max(least[i], min(full, g.least))
			for n, piece := range pieces(cell, g.atCommas) {
				need := uniseg.StringWidth(strings.TrimSuffix(piece, " "))
				if i == 0 && n > 0 {
					need += wrapped
				}
				least[i] = max(least[i], need)
			}
		}
	}
	return least
}

// sum is the width of a table.
func sum(widths []int) int {
	all := -columnGap
	for _, w := range widths {
		all += w + columnGap
	}
	return all
}

// lead returns the width of the first column, if each longer cell has its own line.
func (g *grid) lead(room int) int {
	width := wrapped - columnGap
	for _, row := range g.rows {
		if full := uniseg.StringWidth(row[0]); full <= room {
			width = max(width, full)
		}
	}
	return width
}

func (g *grid) write(out *strings.Builder) {
	full, last := max(g.total, readable), len(g.widths)-1
	for _, row := range g.rows {
		cells := make([][]string, len(row))
		indent := wrapped // of the first cell
		for i, cell := range row {
			cells[i] = wrap(cell, g.widths[i], indent)
			indent = 0
		}
		if g.ownLine && uniseg.StringWidth(row[0]) > g.widths[0] {
			for _, line := range wrap(row[0], full, wrapped) {
				out.WriteString(line + "\n")
			}
			cells[0] = nil
		}
		var below []string
		if g.longEnd && last > 0 && last < len(row) {
			if wide := widest(cells[last]); wide > g.widths[last] && wide+wrapped <= g.room {
				indent := strings.Repeat(" ", min(sum(g.widths[:last])+columnGap, g.room-wide))
				below = lists.Map(cells[last], func(line string) string { return indent + line + "\n" })
				cells = cells[:last]
			}
		}
		g.writeLines(out, cells)
		out.WriteString(strings.Join(below, ""))
	}
}

func widest(lines []string) int {
	wide := 0
	for _, line := range lines {
		wide = max(wide, uniseg.StringWidth(line))
	}
	return wide
}

// writeLines writes the lines of a row's cells.
func (g *grid) writeLines(out *strings.Builder, cells [][]string) {
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
			line.WriteString(text + strings.Repeat(" ", max(0, g.widths[i]-uniseg.StringWidth(text))+columnGap))
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}

// wrap splits a text into lines of at most width columns, or one word. All but the first are indented.
func wrap(text string, width, indent int) []string {
	if uniseg.StringWidth(text) <= width {
		return []string{text}
	}
	long := func(piece string) bool { return uniseg.StringWidth(strings.TrimSuffix(piece, " "))+indent > width }
	parts := strings.SplitAfter(text, ", ") // an item of a list stays on one line
	for _, atCommas := range []bool{false, true} {
		if slices.ContainsFunc(parts, long) {
			parts = pieces(text, atCommas)
		}
	}
	var lines []string
	line := ""
	for _, part := range parts {
		if next := line + part; strings.TrimSpace(line) == "" || uniseg.StringWidth(strings.TrimSuffix(next, " ")) <= width {
			line = next
			continue
		}
		lines = append(lines, strings.TrimRight(line, " "))
		line = strings.Repeat(" ", indent) + part
	}
	return append(lines, strings.TrimRight(line, " "))
}

// pieces splits a text where it may wrap.
func pieces(text string, atCommas bool) []string {
	words := strings.SplitAfter(text, " ")
	if !atCommas {
		return words
	}
	var shorter []string
	for _, word := range words {
		shorter = append(shorter, strings.SplitAfter(word, ",")...)
	}
	return shorter
}
