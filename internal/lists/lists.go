// Package lists has what package slices lacks. Every package may use it.
package lists

// Map returns a list with the value of each item.
func Map[T, U any](items []T, value func(T) U) []U {
	values := make([]U, len(items))
	for i, item := range items {
		values[i] = value(item)
	}
	return values
}
