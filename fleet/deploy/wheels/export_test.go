package wheels

import "time"

// Changed has the cache take files for changed at a time.
func Changed(c Cache, at func(path string) (time.Time, error)) Cache {
	c.changedAt = at
	return c
}
