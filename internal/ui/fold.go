package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lists"
)

// Named is a text about one node.
type Named struct {
	Name, Text string
	// Cause is equal for nodes that Fold groups although their texts differ. The default is the text.
	Cause string
}

// Folded is a text about several nodes.
type Folded struct {
	Names   string // as FoldNames writes them
	Cell    string // as FoldCell writes them
	Count   int
	Text    string
	Example string // the node with this text, if the texts of the others differ
}

// Fold groups nodes with equal texts or causes, in the order of first appearance. A group has its
// first node's text.
func Fold(all []Named) []Folded {
	names := make(map[string][]string)
	differ := make(map[string]bool)
	var first []Named
	text := make(map[string]string)
	for _, n := range all {
		n.Cause = cmp.Or(n.Cause, n.Text)
		if _, seen := names[n.Cause]; !seen {
			first, text[n.Cause] = append(first, n), n.Text
		}
		names[n.Cause] = append(names[n.Cause], n.Name)
		differ[n.Cause] = differ[n.Cause] || text[n.Cause] != n.Text
	}
	folded := make([]Folded, 0, len(first))
	for _, n := range first {
		f := Folded{Names: FoldNames(names[n.Cause]), Cell: FoldCell(names[n.Cause]), Count: len(names[n.Cause]), Text: n.Text}
		if differ[n.Cause] {
			f.Example = n.Name
		}
		folded = append(folded, f)
	}
	return folded
}

// FoldNames writes a set of names as ranges: "gpu[01-14,16],cpu1". It is the inverse of the
// range expressions of an inventory: expanded again, the result is the same set. An inventory
// accepts no names with brackets or commas; FoldNames writes such names unchanged.
func FoldNames(names []string) string {
	var patterns []namePattern
	seen := make(map[string]bool)
	most := 0
	for _, name := range names {
		if !seen[name] {
			seen[name] = true
			p := splitName(name)
			patterns = append(patterns, p)
			most = max(most, len(p.numbers))
		}
	}
	for at := most - 1; at >= 0; at-- {
		patterns = mergeAt(patterns, at)
	}
	words := lists.Map(patterns, namePattern.String)
	return strings.Join(words, ",")
}

// FoldWithin folds names to a width. whole is true if the result has all of them. An ellipsis
// stands for omitted names. If not even one pattern fits, the result is empty.
func FoldWithin(names []string, width int) (folded string, whole bool) {
	folded = FoldNames(names)
	if len(folded) <= width {
		return folded, true
	}
	cut := strings.LastIndexByte(folded[:width], ',')
	if cut <= 0 {
		return "", false
	}
	at := strings.LastIndexByte(folded[:cut], '[')
	if at < strings.LastIndexByte(folded[:cut], ']') || at < 0 {
		return folded[:cut] + ",…", false
	}
	_, behind, _ := strings.Cut(folded[cut:], "]")
	if behind == "" || behind[0] == ',' {
		return folded[:cut] + ",…]", false
	}
	// The names continue after the range. Cut there, they would be names of other nodes.
	if cut = lastOutside(folded[:at]); cut <= 0 {
		return "", false
	}
	return folded[:cut] + ",…", false
}

// FoldCell folds names for the cell of a table, and adds their number if not all fit.
func FoldCell(names []string) string {
	folded, whole := FoldWithin(names, maxCell)
	switch {
	case whole || len(names) == 1:
		return FoldNames(names)
	case folded == "":
		folded = names[0] + ",…"
	}
	return fmt.Sprintf("%s (%d)", folded, len(names))
}

// maxCell is the maximum length of several folded names in a table, in bytes.
const maxCell = 48

// lastOutside returns the index of a text's last comma outside brackets, or -1.
func lastOutside(text string) int {
	last, inside := -1, false
	for i := range len(text) {
		switch text[i] {
		case '[':
			inside = true
		case ']':
			inside = false
		case ',':
			if !inside {
				last = i
			}
		}
	}
	return last
}

// maxSentence is the maximum length of folded names in a sentence, in bytes.
const maxSentence = 200

// FoldShort folds names of nodes for a sentence, and adds their number if not all fit.
func FoldShort(names []string) string {
	folded, whole := FoldWithin(names, maxSentence)
	switch {
	case whole:
		return folded
	case folded == "":
		return Count(len(names), "node")
	}
	return fmt.Sprintf("%s (%s)", folded, Count(len(names), "node"))
}

// String is the text with the names of its nodes, as one line.
func (f Folded) String() string {
	who := f.Names
	if f.Count > 1 {
		who += " (" + Count(f.Count, "node") + ")"
	}
	if f.Example != "" {
		who += ", e.g. " + f.Example
	}
	return who + ": " + f.Text
}

// namePattern is a set of names that differ in numbers only: every combination of these numbers.
type namePattern struct {
	texts   []string   // one more than numbers: around and between them
	numbers [][]string // for each place the numbers as written
}

// maxDigits is the maximum length of a number in a range; longer numbers are text.
const maxDigits = 18

// splitName splits a name at its numbers.
func splitName(name string) namePattern {
	var p namePattern
	text := ""
	for name != "" {
		plain := len(name) - len(strings.TrimLeftFunc(name, func(r rune) bool { return !isDigit(r) }))
		text, name = text+name[:plain], name[plain:]
		digits := name[:len(name)-len(strings.TrimLeftFunc(name, isDigit))]
		name = name[len(digits):]
		if digits == "" || len(digits) > maxDigits {
			text += digits
			continue
		}
		p.texts = append(p.texts, text)
		p.numbers = append(p.numbers, []string{digits})
		text = ""
	}
	p.texts = append(p.texts, text)
	return p
}

func isDigit(r rune) bool { return r >= '0' && r <= '9' }

// mergeAt merges the patterns that differ only in their number at one place. The result stands
// at the place of the first of them.
func mergeAt(patterns []namePattern, at int) []namePattern {
	var merged []namePattern
	index := make(map[string]int)
	for _, p := range patterns {
		if at >= len(p.numbers) {
			merged = append(merged, p)
			continue
		}
		rest := lists.Map(p.numbers, foldNumbers)
		rest[at] = ""
		key := fmt.Sprintf("%q %q", p.texts, rest)
		if i, ok := index[key]; ok {
			merged[i].numbers[at] = append(merged[i].numbers[at], p.numbers[at]...)
			continue
		}
		index[key] = len(merged)
		merged = append(merged, p)
	}
	return merged
}

// String is the pattern as a range expression.
func (p namePattern) String() string {
	var out strings.Builder
	for i, text := range p.texts {
		out.WriteString(text)
		if i == len(p.numbers) {
			break
		}
		switch numbers := p.numbers[i]; len(numbers) {
		case 1:
			out.WriteString(numbers[0])
		default:
			out.WriteString("[" + foldNumbers(numbers) + "]")
		}
	}
	return out.String()
}

// foldNumbers writes numbers in order, and consecutive numbers as a range. All numbers of a
// range have the width of its first number.
func foldNumbers(numbers []string) string {
	numbers = slices.Clone(numbers)
	slices.SortFunc(numbers, func(a, b string) int { // by value; of equal values, the number with less padding comes first
		x, y := strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
		return cmp.Or(len(x)-len(y), strings.Compare(x, y), len(a)-len(b))
	})
	var items []string
	for i := 0; i < len(numbers); {
		end := i
		for end+1 < len(numbers) && comesNext(numbers[i], numbers[end], numbers[end+1]) {
			end++
		}
		item := numbers[i]
		if end > i {
			item += "-" + numbers[end]
		}
		items = append(items, item)
		i = end + 1
	}
	return strings.Join(items, ",")
}

// comesNext reports whether next directly follows last in a range that starts with first.
func comesNext(first, last, next string) bool {
	n, err := strconv.ParseUint(last, 10, 62)
	return err == nil && next == fmt.Sprintf("%0*d", len(first), n+1)
}
