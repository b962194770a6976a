//go:build full && linux

package pictures

import (
	"encoding/xml"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// screen is a terminal of a fixed width that never scrolls. It understands the control sequences
// that dsbuild sends: start of the line, a line up, clear to the end, and colours.
type screen struct {
	columns  int
	rows     [][]cell
	row, col int
	style    string
	rest     []byte // the beginning of an incomplete sequence
}

type cell struct {
	char  rune
	style string
}

func newScreen(columns int) *screen { return &screen{columns: columns, rows: [][]cell{nil}} }

// command shows a line as if a person had typed it.
func (s *screen) command(line string) {
	if s.col > 0 {
		s.newline()
	}
	s.style = "prompt"
	s.printText("$ ")
	s.style = "typed"
	s.printText(line)
	s.style = ""
	s.newline()
}

func (s *screen) printText(text string) {
	for _, r := range text {
		s.putRune(r)
	}
}

var sequence = regexp.MustCompile(`^\x1b\[([0-9;?]*)([A-Za-z])`)

// Write handles the output of a program to its terminal.
func (s *screen) Write(p []byte) (int, error) {
	text := append(s.rest, p...)
	s.rest = nil
	for len(text) > 0 {
		if text[0] == 0x1b {
			m := sequence.FindSubmatch(text)
			if m == nil {
				if len(text) > 16 {
					return 0, fmt.Errorf("an unknown sequence: %q", text[:16])
				}
				s.rest = slices.Clone(text)
				break
			}
			if err := s.handleControl(string(m[1]), m[2][0]); err != nil {
				return 0, err
			}
			text = text[len(m[0]):]
			continue
		}
		if !utf8.FullRune(text) {
			s.rest = slices.Clone(text)
			break
		}
		r, size := utf8.DecodeRune(text)
		text = text[size:]
		switch r {
		case '\r':
			s.col = 0
		case '\n':
			s.newline()
		default:
			s.putRune(r)
		}
	}
	return len(p), nil
}

func (s *screen) handleControl(argument string, what byte) error {
	styles := map[string]string{"": "", "0": "", "2": "dim", "31": "red", "32": "green", "33": "yellow"}
	style, known := styles[argument]
	switch {
	case what == 'A' && argument == "":
		s.row = max(0, s.row-1)
	case what == 'K' && argument == "":
		s.rows[s.row] = s.rows[s.row][:min(s.col, len(s.rows[s.row]))]
	case what == 'm' && known:
		s.style = style
	default:
		return fmt.Errorf("an unknown sequence: %q %c", argument, what)
	}
	return nil
}

func (s *screen) newline() {
	s.row, s.col = s.row+1, 0
	if s.row == len(s.rows) {
		s.rows = append(s.rows, nil)
	}
}

func (s *screen) putRune(r rune) {
	if s.col == s.columns {
		s.newline()
	}
	row := s.rows[s.row]
	for len(row) <= s.col {
		row = append(row, cell{char: ' '})
	}
	row[s.col] = cell{r, s.style}
	s.rows[s.row] = row
	s.col++
}

// text returns the text on the screen, without colours.
func (s *screen) text() string {
	var b strings.Builder
	for _, row := range s.rows {
		for _, c := range row {
			b.WriteRune(c.char)
		}
		b.WriteByte('\n')
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// Sizes of a picture, in pixels.
const (
	charWidth  = 7.6
	lineHeight = 18
	margin     = 14
)

const look = `<style>
rect{fill:#0d1117}text{font:12.6px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#e6edf3;white-space:pre}
.prompt{fill:#7ee787}.typed{font-weight:600;fill:#fff}.dim{fill:#8b949e}.red{fill:#ff7b72}.green{fill:#7ee787}.yellow{fill:#e3b341}
</style>
`

// renderSVG draws the screen as a picture. It sets the width of each piece of text, so that
// columns line up in every font.
func (s *screen) renderSVG(title string) string {
	rows := s.rows
	for len(rows) > 0 && len(rows[len(rows)-1]) == 0 {
		rows = rows[:len(rows)-1]
	}
	width := float64(s.columns)*charWidth + 2*margin
	height := len(rows)*lineHeight + 2*margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d" viewBox="0 0 %.0f %d" role="img" aria-label="%s">`+"\n", width, height, width, height, escapeXML(title))
	fmt.Fprintf(&b, "<title>%s</title>\n<desc>%s</desc>\n", escapeXML(title), escapeXML(s.text()))
	b.WriteString(look)
	fmt.Fprintf(&b, `<rect width="%.0f" height="%d" rx="8"/>`+"\n", width, height)
	for i, row := range rows {
		y := margin + i*lineHeight + 13
		for _, p := range splitPieces(row) {
			fmt.Fprintf(&b, `<text x="%.1f" y="%d" textLength="%.1f" lengthAdjust="spacingAndGlyphs"`, margin+float64(p.at)*charWidth, y, float64(utf8.RuneCountInString(p.text))*charWidth)
			if p.style != "" {
				fmt.Fprintf(&b, ` class="%s"`, p.style)
			}
			fmt.Fprintf(&b, ">%s</text>\n", escapeXML(p.text))
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// piece is a run of characters of one style.
type piece struct {
	at          int
	text, style string
}

// splitPieces splits a row at changes of style, and omits wide gaps.
func splitPieces(row []cell) []piece {
	var all []piece
	blank := 2 // as if after a gap
	for i, c := range row {
		if c.char == ' ' {
			blank++
			continue
		}
		last := len(all) - 1
		if last < 0 || blank > 1 || all[last].style != c.style {
			all = append(all, piece{at: i, text: string(c.char), style: c.style})
		} else {
			all[last].text += strings.Repeat(" ", blank) + string(c.char)
		}
		blank = 0
	}
	return all
}

func escapeXML(text string) string {
	var b strings.Builder
	xml.EscapeText(&b, []byte(text)) //nolint:errcheck // a Builder accepts everything
	return b.String()
}
