package ui

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Size formats a number of bytes: "512 B", "42.1 MiB".
func Size(bytes int64) string {
	if bytes < 0 {
		return "-" + Size(-max(bytes, -math.MaxInt64)) // the least number has no opposite
	}
	if bytes < 1024 {
		return fmt.Sprintf("%d B", bytes)
	}
	value := float64(bytes)
	unit := ""
	for _, unit = range []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"} {
		// 1023.95 would be written as 1024.0.
		if value /= 1024; value < 1023.95 {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", value, unit)
}

// Duration formats a duration: "0.3s", "42.0s", "3m05s", "1h02m".
func Duration(d time.Duration) string {
	switch tenths := d.Round(100 * time.Millisecond); {
	case d < 0:
		return "-" + Duration(-max(d, -math.MaxInt64))
	case tenths < time.Minute:
		return fmt.Sprintf("%.1fs", tenths.Seconds())
	}
	if d = d.Round(time.Second); d < time.Hour {
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	}
	d = d.Round(time.Minute)
	return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
}

// Count formats a number of things: "1 node", "3 nodes", "2 processes".
func Count(n int, singular string) string {
	if n == 1 {
		return "1 " + singular
	}
	if strings.HasSuffix(singular, "s") {
		singular += "e"
	}
	return fmt.Sprintf("%d %ss", n, singular)
}
