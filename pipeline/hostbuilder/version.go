package hostbuilder

import (
	"slices"
	"strconv"
	"strings"
)

// olderVersion compares versions of numbers joined by dots. What is no number
// counts as 0.
func olderVersion(a, b string) bool {
	return slices.Compare(numbers(a), numbers(b)) < 0
}

func numbers(version string) []int {
	var out []int
	for field := range strings.SplitSeq(version, ".") {
		n, _ := strconv.Atoi(field)
		out = append(out, n)
	}
	return out
}
