// Package changed says when a file was changed last, so that what was read of one need
// not be read again.
package changed

import "time"

// Slack is how long before it is read a file must have been changed last, for what was
// read to be true of it later: clocks of file systems are coarse, and one of a network
// may show a change late.
const Slack = time.Minute
