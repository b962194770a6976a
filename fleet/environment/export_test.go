package environment

import "time"

// Changed makes s treat files as changed at a time.
func Changed(s Sums, at func(path string) (time.Time, error)) Sums {
	s.changedAt = at
	return s
}
