package inventory

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxNames is the maximum number of names in a node expression, and of hosts in an
// inventory.
const MaxNames = 100_000

const (
	maxName   = 255 // bytes of one name
	maxDigits = 18  // digits of a number in a range; more do not fit an int
)

// RangeError reports an invalid range expression.
type RangeError struct {
	// Offset is the position of the error in the expression, in bytes.
	Offset  int
	Message string
}

func (e *RangeError) Error() string { return e.Message }

// Expand expands a node expression: names and ranges, separated by commas, such as
// "gpu[01-16,20],cpu1" or "n[1-2]x[1-2]". The names keep the padding of a range's first number and
// may contain duplicates. The error is a *RangeError.
func Expand(expr string) ([]string, error) {
	var names []string
	for start := 0; ; {
		term, err := parseTerm(expr, start)
		if err != nil {
			return nil, err
		}
		count := term.count()
		if len(names)+count > MaxNames {
			return nil, &RangeError{start, fmt.Sprintf("more than %d names", MaxNames)}
		}
		names = term.appendNames(names)
		if term.end == len(expr) {
			return names, nil
		}
		start = term.end + 1 // behind the comma
	}
}

// rangeTerm is one name or range: texts alternating with sets of numbers.
type rangeTerm struct {
	parts []rangePart
	end   int // where it ends in the expression
}

// add appends a part; texts that follow each other become one.
func (t *rangeTerm) add(p rangePart) {
	if last := len(t.parts) - 1; last >= 0 && p.spans == nil && t.parts[last].spans == nil {
		t.parts[last].text += p.text
		return
	}
	t.parts = append(t.parts, p)
}

// rangePart is one of a literal text and the numbers in brackets.
type rangePart struct {
	text  string
	spans []span
}

// span is the numbers from first to last, width digits wide.
type span struct{ first, last, width int }

func parseTerm(expr string, start int) (rangeTerm, error) {
	var term rangeTerm
	at, length := start, 0
	for at < len(expr) && expr[at] != ',' {
		switch expr[at] {
		case '[':
			part, end, err := parseBrackets(expr, at)
			if err != nil {
				return term, err
			}
			if s := part.spans[0]; len(part.spans) == 1 && s.first == s.last {
				part = rangePart{text: s.format(s.first)} // one number is a text
			}
			term.add(part)
			longest := len(part.text)
			for _, s := range part.spans {
				longest = max(longest, len(s.format(s.last)))
			}
			at, length = end, length+longest
		case ']':
			return term, &RangeError{at, "unmatched ]"}
		default:
			end := at + 1
			for end < len(expr) && !strings.ContainsRune("[],", rune(expr[end])) {
				end++
			}
			term.add(rangePart{text: expr[at:end]})
			length += end - at
			at = end
		}
		if length > maxName {
			return term, &RangeError{start, fmt.Sprintf("name longer than %d characters", maxName)}
		}
	}
	if at == start {
		return term, &RangeError{start, "missing name"}
	}
	term.end = at
	return term, nil
}

// parseBrackets reads "[01-16,20]" at the offset open and returns where it ends.
func parseBrackets(expr string, open int) (rangePart, int, error) {
	length := strings.IndexByte(expr[open:], ']')
	if length < 0 {
		return rangePart{}, 0, &RangeError{open, "unmatched ["}
	}
	var part rangePart
	at := open + 1
	for item := range strings.SplitSeq(expr[at:open+length], ",") {
		s, err := parseSpan(item)
		if err != nil {
			return rangePart{}, 0, &RangeError{at, err.Error()}
		}
		if part.spans = append(part.spans, s); len(part.spans) > MaxNames {
			return rangePart{}, 0, &RangeError{open, fmt.Sprintf("more than %d names", MaxNames)}
		}
		at += len(item) + 1
	}
	return part, open + length + 1, nil
}

// parseSpan reads "7" or "01-16".
func parseSpan(item string) (span, error) {
	first, last, isRange := strings.Cut(item, "-")
	if !isRange {
		last = first
	}
	for _, number := range []string{first, last} {
		if number == "" || strings.Trim(number, "0123456789") != "" {
			return span{}, fmt.Errorf("invalid range %q: want a number, or a range such as 01-16", item)
		}
		if len(number) > maxDigits {
			return span{}, fmt.Errorf("number %q is too large", number)
		}
	}
	s := span{width: len(first)}
	// Only digits, and few enough for an int: neither can fail.
	s.first, _ = strconv.Atoi(first)
	s.last, _ = strconv.Atoi(last)
	if s.last < s.first {
		return span{}, fmt.Errorf("descending range %s", item)
	}
	if want := s.format(s.last); last != want {
		return span{}, fmt.Errorf("bounds of range %s have different widths (did you mean %s-%s?)", item, first, want)
	}
	return s, nil
}

func (s span) format(n int) string { return fmt.Sprintf("%0*d", s.width, n) }

// count is how many names the term stands for; anything above MaxNames means too many.
func (t rangeTerm) count() int {
	total := 1
	for _, p := range t.parts {
		if p.spans == nil {
			continue
		}
		here := 0
		for _, s := range p.spans {
			if s.last-s.first >= MaxNames {
				return MaxNames + 1
			}
			here = min(here+s.last-s.first+1, MaxNames+1)
		}
		if total *= here; total > MaxNames {
			return MaxNames + 1
		}
	}
	return total
}

// appendNames appends the term's names, the last numbers running fastest.
func (t rangeTerm) appendNames(to []string) []string {
	stems := []string{""}
	for _, p := range t.parts {
		if p.spans == nil {
			for i := range stems {
				stems[i] += p.text
			}
			continue
		}
		var next []string
		for _, stem := range stems {
			for _, s := range p.spans {
				for n := s.first; n <= s.last; n++ {
					next = append(next, stem+s.format(n))
				}
			}
		}
		stems = next
	}
	return append(to, stems...)
}
