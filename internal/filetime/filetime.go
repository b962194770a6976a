// Package filetime reads the time of a file's last change, so that a program need
// not read an unchanged file again.
package filetime

import "time"

// Slack is the minimum reliable age of a change. A younger change may hide a later one, because
// file systems' clocks are coarse and network file systems show changes late.
const Slack = time.Minute
