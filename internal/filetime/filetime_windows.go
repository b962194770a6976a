package filetime

import (
	"errors"
	"time"
)

// At is not supported on Windows.
func At(string) (time.Time, error) { return time.Time{}, errors.ErrUnsupported }
