package python

import (
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"time"
)

// reportEvery is how often a download says how far it is.
const reportEvery = 10 * time.Second

// downloads counts what uv says of its downloads. uv names those that take long
// at their start and at their end.
type downloads struct {
	began time.Time

	mu          sync.Mutex
	sizes       map[string]float64 // megabytes of those that run, by name
	done, total float64
}

var (
	uvBegins = regexp.MustCompile(`^\s*Downloading (\S+) \(([0-9.]+)(KiB|MiB|GiB)\)`)
	uvEnds   = regexp.MustCompile(`^\s*Downloaded (\S+)`)
)

// add handles a line of uv's output.
func (d *downloads) add(line string) {
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

// after says how far the downloads are after a time.
func (d *downloads) after(elapsed time.Duration) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.total == 0 {
		return fmt.Sprintf("resolving (%.0f s so far)", elapsed.Seconds())
	}
	text := fmt.Sprintf("%.0f of %.0f MB downloaded (%.0f s so far", d.done, d.total, elapsed.Seconds())
	if d.done > d.total/20 && d.done < d.total {
		left := time.Duration(float64(elapsed) * (d.total - d.done) / d.done)
		text += fmt.Sprintf(", about %.0f s more", left.Round(10*time.Second).Seconds())
	}
	return text + ")"
}

// report logs how far the downloads are until stop is called.
func (d *downloads) report(log func(string)) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(reportEvery)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				log(d.after(time.Since(d.began)))
			}
		}
	}()
	return func() { close(done); <-ended }
}
