// Package lists complements package slices. Every package may use it.
package lists

import "strings"

// Map applies a function to each item.
func Map[T, U any](items []T, value func(T) U) []U {
	values := make([]U, len(items))
	for i, item := range items {
		values[i] = value(item)
	}
	return values
}

// Or joins values for a sentence: "a", "a or b", "a, b or c".
func Or(values []string) string { return join(values, " or ") }

// And joins values for a sentence: "a", "a and b", "a, b and c".
func And(values []string) string { return join(values, " and ") }

func join(values []string, before string) string {
	last := len(values) - 1
	if last < 1 {
		return strings.Join(values, "")
	}
	return strings.Join(values[:last], ", ") + before + values[last]
}
