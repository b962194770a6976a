// Package filetime reads the time of a file's last change, so that a program need
// not read an unchanged file again.
package filetime

import "time"

// Slack is the least age of the last change at the time of reading: a file that was
// changed later may have changed again unnoticed, for clocks of file systems are
// coarse and a network file system may show a change late.
const Slack = time.Minute
