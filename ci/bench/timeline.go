//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// span is a program that ran, from when to when, in seconds since the beginning.
type span struct {
	what       string // the source it worked on, or its name
	kind       string // a class of style
	begin, end float64
}

// kinds are the programs that a picture shows, by the names that the kernel has for
// them, and their class of style.
var kinds = map[string]string{
	"cc1plus": "host", "cc1": "host", "cudafe++": "device", "cicc": "device", "ptxas": "device", "ld": "link", "collect2": "link",
	"python": "python", "python3": "python", "python3.11": "python",
}

// sampling is how often it is looked; it takes a fiftieth of a core.
const sampling = 200 * time.Millisecond

// watchProcesses looks at what this process's children run while do does its work. A compiler
// is there from its beginning to its end; what waits most of the time, as Python does for
// compilers, only while it runs.
func watchProcesses(do func()) []span {
	begin := time.Now()
	done := make(chan struct{})
	go func() {
		do()
		close(done)
	}()
	var all []span
	last := map[int]int{} // the last span of a process
	for {
		select {
		case <-done:
			return all
		case <-time.After(sampling):
		}
		now := time.Since(begin).Seconds()
		table := readProcesses()
		below := descendants(table, os.Getpid())
		for _, p := range table {
			kind := kinds[p.name]
			if kind == "" || !below[p.pid] || kind == "python" && p.state != "R" {
				continue
			}
			i, known := last[p.pid]
			if !known || now-all[i].end > 5*sampling.Seconds() {
				i = len(all)
				all = append(all, span{what: workingOn(p), kind: kind, begin: max(0, now-sampling.Seconds())})
				last[p.pid] = i
			}
			all[i].end = now
		}
	}
}

// descendants are the processes below one.
func descendants(table []process, root int) map[int]bool {
	below := map[int]bool{root: true}
	for grew := true; grew; {
		grew = false
		for _, p := range table {
			if below[p.parent] && !below[p.pid] {
				below[p.pid], grew = true, true
			}
		}
	}
	delete(below, root)
	return below
}

// workingOn is the source in a compiler's command, or its name.
func workingOn(p process) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
	if err != nil {
		return p.name
	}
	for _, word := range slices.Backward(strings.Split(string(text), "\x00")) {
		name := filepath.Base(word)
		if stem, _, _ := strings.Cut(name, "."); stem != "" && slices.Contains([]string{".cpp", ".cu", ".ii", ".ptx"}, filepath.Ext(name)) {
			return stem + " (" + p.name + ")"
		}
	}
	return p.name
}

// chart is one build, for a picture.
type chart struct {
	title string
	wall  float64
	spans []span
}

// assignLanes puts spans into as few lanes as have no two at once.
func assignLanes(spans []span) [][]span {
	spans = slices.Clone(spans)
	slices.SortStableFunc(spans, func(a, b span) int {
		if a.begin < b.begin {
			return -1
		}
		return 1
	})
	var out [][]span
	for _, s := range spans {
		free := slices.IndexFunc(out, func(lane []span) bool { return lane[len(lane)-1].end <= s.begin+sampling.Seconds()/2 })
		if free < 0 {
			out = append(out, nil)
			free = len(out) - 1
		}
		out[free] = append(out[free], s)
	}
	return out
}

const timelineStyle = `<style>.host{fill:#0969da}.device{fill:#1a7f37}.link{fill:#bc4c00}.python{fill:#afb8c1}
@media(prefers-color-scheme:dark){.host{fill:#4493f8}.device{fill:#3fb950}.link{fill:#db6d28}.python{fill:#656c76}}
text.in{font-size:10px;fill:#fff}</style>
`

// drawTimeline draws builds one below the other on the same scale: what ran when, each
// program in a lane of those that are at work at once.
func drawTimeline(title string, charts []chart) string {
	const left, width, top, row, thick = 8, 920, 36, 18, 15
	longest := 1.0
	for _, c := range charts {
		longest = max(longest, c.wall)
	}
	x := func(seconds float64) float64 { return left + seconds/longest*(width-2*left) }
	var out strings.Builder
	out.WriteString(timelineStyle)
	for i, kind := range []struct{ class, text string }{{"host", "C++"}, {"device", "device code"}, {"link", "link"}, {"python", "Python at work"}} {
		at := width - 420 + i*105
		fmt.Fprintf(&out, `<rect class="%s" x="%d" y="11" width="10" height="10"/><text class="small" x="%d" y="20">%s</text>`+"\n", kind.class, at, at+14, kind.text)
	}
	y := top
	for _, c := range charts {
		fmt.Fprintf(&out, `<text x="%d" y="%d">%s: %.1f s</text>`+"\n", left, y+14, escapeXML(c.title), c.wall)
		y += 22
		for _, lane := range assignLanes(c.spans) {
			for _, s := range lane {
				from, to := x(s.begin), x(min(s.end, c.wall))
				fmt.Fprintf(&out, `<rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d" rx="1.5"><title>%s, %.1f to %.1f s</title></rect>`, s.kind, from, y, max(0.8, to-from), thick, escapeXML(s.what), s.begin, s.end)
				if room := (to - from) / 5.6; room > 6 && s.kind != "python" {
					fmt.Fprintf(&out, `<text class="in" x="%.1f" y="%d">%s</text>`, from+3, y+11, escapeXML(s.what[:min(len(s.what), int(room))]))
				}
				out.WriteByte('\n')
			}
			y += row
		}
		fmt.Fprintf(&out, `<line class="whisker" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`+"\n", x(c.wall), x(c.wall), y-8, y)
		y += 12
	}
	for seconds := 0.0; seconds <= longest; seconds += roundUp(longest / 10) {
		fmt.Fprintf(&out, `<text class="small" x="%.1f" y="%d">%.0f s</text>`+"\n", x(seconds), y+6, seconds)
	}
	return drawSVG(width, y+14, title, out.String())
}
