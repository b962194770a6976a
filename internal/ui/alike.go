package ui

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Likeness tells which texts said of different nodes mean the same: those that
// are equal but for what each node has for itself, which are names and
// addresses of nodes, process ids, counts, sizes, times, digests and random
// names. Versions, exit statuses and error numbers are part of what is meant.
type Likeness struct{ names map[string]bool }

// NewLikeness makes one for a fleet of these names.
func NewLikeness(names []string) Likeness {
	l := Likeness{make(map[string]bool, len(names))}
	for _, n := range names {
		l.names[n] = !isNumber(n)
	}
	return l
}

const (
	// maxLikeness is how much of a text is compared.
	maxLikeness = 8 << 10
	// randomWord is how long a word in capitals is that may be random.
	randomWord = 12
)

// What a node has for itself, and what stands in for it. The order matters:
// what is left of a text is looked at by the next.
var (
	word  = regexp.MustCompile(`[A-Za-z0-9][A-Za-z0-9._/-]*`)
	signs = []struct {
		what *regexp.Regexp
		sign string
	}{
		{regexp.MustCompile(`\b\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d+)?)?(Z|[+-]\d\d:?\d\d)?)?\b|\b\d?\d:\d\d:\d\d\b`), "<time>"},
		{regexp.MustCompile(`\b\d{1,3}(?:\.\d{1,3}){3}\b`), "<address>"},
		{regexp.MustCompile(`\[?<address>\]?(?::\d{1,5}\b)?`), "<address>"}, // its port
		{regexp.MustCompile(`(?i)\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b0x[0-9a-f]+\b`), "<id>"},
		{regexp.MustCompile(`\btmp[a-z0-9_]{8}\b|\b[A-Z2-7]{12,}\b`), "<id>"}, // Python's temporary names, and those of crypto/rand.Text
		{regexp.MustCompile(`\b\d+(?:\.\d+)?\s?(?:[kKMGTPE]i?B|B|[Bb]ytes?)\b`), "<size>"},
		{regexp.MustCompile(`\b(?:\d+(?:\.\d+)?(?:h|m|s|ms|µs|ns))+\b|\b\d+(?:\.\d+)? (?:s|ms|seconds?|minutes?|hours?)\b`), "<time>"},
		{regexp.MustCompile(`\b\d+(?:\.\d+)?\s?%`), "<share>"},
	}
	maybeIPv6   = regexp.MustCompile(`[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]+`)
	hexadecimal = regexp.MustCompile(`(?i)\b[0-9a-f]{8,}\b`)
	number      = regexp.MustCompile(`[\w.]*\d[\w.]*`)
	lastWord    = regexp.MustCompile(`(\w+)\W*$`)
	meant       = []string{"status", "code", "errno", "signal", "error", "http", "python", "torch", "cuda", "version"}
)

// Key is equal for texts that mean the same. own are the names and addresses
// of the node of which the text is said.
func (l Likeness) Key(text string, own ...string) string {
	text = text[:min(len(text), maxLikeness)]
	own = slices.Clone(own)
	slices.SortFunc(own, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, name := range own {
		text = replaceWord(text, name, "<node>")
	}
	text = l.others(text)
	var out strings.Builder
	done := 0
	for _, at := range telling(text) {
		out.WriteString(text[done:at[0]])
		out.WriteString(general(text[at[0]:at[1]]))
		done = at[1]
	}
	return out.String() + text[done:]
}

// telling finds the parts of a text in which there may be something that a node
// has for itself: words with digits, or random ones, each with those around it.
// Most of a text is none, and patterns take long to find that out.
func telling(text string) (parts [][2]int) {
	before, wanted := 0, false // the beginning of the word before; whether it wants this one
	for from := 0; from < len(text); {
		end := len(text)
		if i := strings.IndexAny(text[from:], " \n"); i >= 0 {
			end = from + i + 1
		}
		told := tells(text[from:end])
		switch last := len(parts) - 1; {
		case told && last >= 0 && parts[last][1] >= before:
			parts[last][1] = end
		case told:
			parts = append(parts, [2]int{before, end})
		case wanted:
			parts[last][1] = end
		}
		before, from, wanted = from, end, told
	}
	return parts
}

// tells says whether a word has digits, or may be random.
func tells(w string) bool {
	capitals := 0
	for i := range len(w) {
		switch b := w[i]; {
		case isDigit(rune(b)):
			return true
		case b >= 'A' && b <= 'Z':
			capitals++
		default:
			capitals = 0
		}
		if capitals == randomWord {
			return true
		}
	}
	return false
}

// general is a text without what a node has for itself, but for names.
func general(text string) string {
	text = addresses(text)
	for _, s := range signs {
		text = s.what.ReplaceAllString(text, s.sign)
	}
	text = hexadecimal.ReplaceAllStringFunc(text, func(w string) string {
		if strings.ContainsAny(w, "0123456789") {
			return "<id>"
		}
		return w
	})
	return numbers(text)
}

// others replaces the names of other nodes.
func (l Likeness) others(text string) string {
	var out strings.Builder
	done := 0
	for _, at := range word.FindAllStringIndex(text, -1) {
		if name := strings.TrimRight(text[at[0]:at[1]], "._/-"); l.names[name] {
			out.WriteString(text[done:at[0]] + "<node>")
			done = at[0] + len(name)
		}
	}
	return out.String() + text[done:]
}

// replaceWord replaces a name where it stands by itself.
func replaceWord(text, name, sign string) string {
	if isNumber(name) {
		return text
	}
	var out strings.Builder
	done := 0
	for from := 0; ; {
		at := strings.Index(text[from:], name)
		if at < 0 {
			return out.String() + text[done:]
		}
		at += from
		end := at + len(name)
		from = at + 1
		if (at == 0 || !isAlphanumeric(text[at-1])) && (end == len(text) || !isAlphanumeric(text[end])) {
			out.WriteString(text[done:at] + sign)
			done, from = end, end
		}
	}
}

// isNumber reports whether a name is a number, or none at all: it could be part
// of anything.
func isNumber(name string) bool { return strings.Trim(name, "0123456789.") == "" }

// addresses replaces those of IPv6, which no pattern tells from other words.
func addresses(text string) string {
	return maybeIPv6.ReplaceAllStringFunc(text, func(w string) string {
		address := strings.TrimRight(w, ":.")
		if _, err := netip.ParseAddr(address); err != nil || strings.Count(address, ":") < 2 {
			return w
		}
		return "<address>" + w[len(address):]
	})
}

func isAlphanumeric(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b == '_'
}

// numbers replaces those that count or name something: they stand by themselves,
// and no word before them says that they are what is meant.
func numbers(text string) string {
	var out strings.Builder
	done := 0
	for _, at := range number.FindAllStringIndex(text, -1) {
		w := strings.TrimRight(text[at[0]:at[1]], ".")
		before := lastWord.FindStringSubmatch(text[max(0, at[0]-32):at[0]])
		if strings.Trim(w, "0123456789") != "" || before != nil && slices.Contains(meant, strings.ToLower(before[1])) {
			continue
		}
		out.WriteString(text[done:at[0]] + "<n>")
		done = at[0] + len(w)
	}
	out.WriteString(text[done:])
	return out.String()
}

// FoldAlike puts together what was said about several nodes in words that mean
// the same, in the order in which each appears first. The text is what was said
// of the first of them; where the words of others differ, Example names it.
func FoldAlike(all []Named) []Folded {
	names := make([]string, len(all))
	for i, n := range all {
		names[i] = n.Name
	}
	like := NewLikeness(names)
	type group struct {
		names  []string
		text   string
		unlike bool
	}
	place := make(map[string]int)
	var groups []group
	for _, n := range all {
		key := like.Key(n.Text, n.Name)
		at, seen := place[key]
		if !seen {
			at, groups = len(groups), append(groups, group{text: n.Text})
			place[key] = at
		}
		g := &groups[at]
		g.names, g.unlike = append(g.names, n.Name), g.unlike || g.text != n.Text
	}
	folded := make([]Folded, 0, len(groups))
	for _, g := range groups {
		f := Folded{Names: FoldNames(g.names), Count: len(g.names), Text: g.text}
		if g.unlike {
			f.Example = g.names[0]
		}
		folded = append(folded, f)
	}
	return folded
}
