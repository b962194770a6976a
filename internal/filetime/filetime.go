// Package filetime reads the time of a file's last change, so that a program need
// not read an unchanged file again.
package filetime

import "time"

// Slack is the least age of a change that can be relied on. A file that changed later than this
// before the reading may have changed again unnoticed: the clocks of file systems are coarse,
// and a network file system may show a change late.
const Slack = time.Minute
