package lineerr

import "unicode"

// maxWord is the longest word that is compared, in bytes.
const maxWord = 255

// The costs of Distance.
const (
	// Letter is the distance of words that differ in one letter.
	Letter = 2
	// lookAlike is the distance of letters that people confuse, and of a zero too few or too many: gpu1 and gpu01.
	lookAlike = 1
)

// Nearest returns the candidate most like word, or "" if none is close enough to be a typing
// error.
func Nearest(word string, candidates []string) string {
	limit := max(len(word)/3, 1) * Letter
	if len(word) < 3 {
		limit = lookAlike // another letter is half of another word
	}
	best, bestDistance := "", limit+1
	for _, c := range candidates {
		// A long list of long names must not make an error slow.
		if len(word) > maxWord || lookAlike*(len(c)-len(word)) >= bestDistance || lookAlike*(len(word)-len(c)) >= bestDistance {
			continue
		}
		if d := Distance(word, c); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// DidYouMean returns a hint with the candidate most like word, or "".
func DidYouMean(word string, candidates []string) string {
	if near := Nearest(word, candidates); near != "" {
		return "did you mean " + near + "?"
	}
	return ""
}

// Distance returns the edit distance of two words: Letter for each letter to insert, drop, replace
// or swap with its neighbor, and less for zeros and for letters that look alike.
func Distance(a, b string) int {
	before, above, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range len(b) {
		row[j+1] = row[j] + omission(b[j])
	}
	for i := range len(a) {
		before, above, row = above, row, before
		row[0] = above[0] + omission(a[i])
		for j := range len(b) {
			row[j+1] = min(above[j]+replacement(a[i], b[j]), above[j+1]+omission(a[i]), row[j]+omission(b[j]))
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] && a[i] != b[j] {
				row[j+1] = min(row[j+1], before[j-1]+Letter)
			}
		}
	}
	return row[len(b)]
}

// omission is the cost of one letter more or less.
func omission(c byte) int {
	if c == '0' {
		return lookAlike
	}
	return Letter
}

// replacement is the cost of replacing one letter by another.
func replacement(a, b byte) int {
	if a == b {
		return 0
	}
	if shape(a) == shape(b) {
		return lookAlike
	}
	return Letter
}

// shape is the same for letters that look alike.
func shape(c byte) byte {
	switch c = byte(unicode.ToLower(rune(c))); c {
	case '0':
		return 'o'
	case '1', 'i':
		return 'l'
	case '2':
		return 'z'
	case '5':
		return 's'
	case '8':
		return 'b'
	case '_':
		return '-'
	}
	return c
}
