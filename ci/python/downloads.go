package python

import (
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/ci/progress"
)

// downloads counts what uv says of its downloads. uv names those that take long
// at their start and at their end.
type downloads struct {
	mu          sync.Mutex
	sizes       map[string]float64 // megabytes of those that run, by name
	done, total float64
}

var (
	uvBegins = regexp.MustCompile(`^\s*Downloading (\S+) \(([0-9.]+)(KiB|MiB|GiB)\)`)
	uvEnds   = regexp.MustCompile(`^\s*Downloaded (\S+)`)
)

// addLine handles a line of uv's output.
func (d *downloads) addLine(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m := uvBegins.FindStringSubmatch(line); m != nil {
		size, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return
		}
		size *= map[string]float64{"KiB": 1.0 / 1024, "MiB": 1, "GiB": 1024}[m[3]]
		d.sizes[m[1]] = size
		d.total += size
	}
	if m := uvEnds.FindStringSubmatch(line); m != nil {
		d.done += d.sizes[m[1]]
		delete(d.sizes, m[1])
	}
}

// describeProgress says how far the downloads are after a time.
func (d *downloads) describeProgress(elapsed time.Duration) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.total == 0 {
		return fmt.Sprintf("resolving (%.0f s so far)", elapsed.Seconds())
	}
	text := fmt.Sprintf("%.0f of %.0f MB downloaded (%.0f s so far", d.done, d.total, elapsed.Seconds())
	return text + progress.Remaining(d.done, d.total, elapsed) + ")"
}
