package mistake

// maxWord is the longest word that is compared, in bytes.
const maxWord = 255

// Nearest returns the candidate most like word, or "" if none is close
// enough to be a slip of the keyboard.
func Nearest(word string, candidates []string) string {
	best, bestDistance := "", max(len(word)/3, 1)+1
	for _, c := range candidates {
		// A long list of long names must not make an error slow.
		if len(word) > maxWord || len(c)-len(word) >= bestDistance || len(word)-len(c) >= bestDistance {
			continue
		}
		if d := distance(word, c); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance is the number of characters to insert, drop or replace.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
