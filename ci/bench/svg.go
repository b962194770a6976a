//go:build linux

package main

import (
	"encoding/xml"
	"fmt"
	"math"
	"strings"
)

// bar is one contender in a picture of bars.
type bar struct {
	label string
	value spread
	text  string // at the end of the bar
	ours  bool
}

// style is readable on light and dark pages: nothing is drawn behind.
const style = `<style>
text{font:13px system-ui,sans-serif;fill:#1f2328}.small{font-size:11px;fill:#59636e}.title{font-weight:600}
.bar{fill:#afb8c1}.ours{fill:#0969da}.whisker{stroke:#59636e}.grid{stroke:#d1d9e0}
.line{fill:none;stroke:#0969da;stroke-width:2}.dot{fill:#0969da}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.small{fill:#9198a1}.bar{fill:#656c76}.ours{fill:#4493f8}
.whisker{stroke:#9198a1}.grid{stroke:#3d444d}.line{stroke:#4493f8}.dot{fill:#4493f8}}
</style>
`

// drawSVG draws a picture with a title.
func drawSVG(width, height int, title, body string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-label="%s">
%s<text class="title" x="8" y="20">%s</text>
%s</svg>
`, width, height, width, height, escapeXML(title), style, escapeXML(title), body)
}

func escapeXML(text string) string {
	var b strings.Builder
	xml.EscapeText(&b, []byte(text)) //nolint:errcheck // a Builder takes everything
	return b.String()
}

// drawBars draws a bar for each, from zero, with a line from its least to its
// most, and a grid line at 1.
func drawBars(title string, bars []bar) string {
	const left, right, top, row, thick = 180, 130, 36, 26, 16
	const width = 760
	most := 1.0
	for _, b := range bars {
		most = math.Max(most, b.value.most)
	}
	x := func(v float64) float64 { return left + v/most*(width-left-right) }
	var out strings.Builder
	bottom := top + row*len(bars)
	fmt.Fprintf(&out, `<line class="grid" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`+"\n", x(1), x(1), top-4, bottom)
	for i, b := range bars {
		y := top + row*i
		class := "bar"
		if b.ours {
			class = "ours"
		}
		fmt.Fprintf(&out, `<text x="%d" y="%d" text-anchor="end">%s</text>`, left-8, y+13, escapeXML(b.label))
		fmt.Fprintf(&out, `<rect class="%s" x="%d" y="%d" width="%.1f" height="%d" rx="2"/>`, class, left, y, x(b.value.median)-left, thick)
		fmt.Fprintf(&out, `<line class="whisker" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`, x(b.value.least), x(b.value.most), y+thick/2, y+thick/2)
		fmt.Fprintf(&out, `<text class="small" x="%.1f" y="%d">%s</text>`+"\n", x(b.value.most)+6, y+12, escapeXML(b.text))
	}
	return drawSVG(width, bottom+10, title, out.String())
}

// curve is something measured at several sizes.
type curve struct {
	title string // with its unit
	x, y  []float64
}

// drawCurves draws curves side by side, each from zero, on linear scales.
func drawCurves(title string, curves []curve) string {
	const left, top, wide, high, gap = 52, 56, 180, 140, 64
	var out strings.Builder
	for i, c := range curves {
		x0, mostX, mostY := float64(left+i*(wide+gap)), 0.0, 0.0
		for j := range c.x {
			mostX, mostY = math.Max(mostX, c.x[j]), math.Max(mostY, c.y[j])
		}
		mostY = roundUp(mostY)
		x := func(v float64) float64 { return x0 + v/mostX*wide }
		y := func(v float64) float64 { return top + high - v/mostY*high }
		fmt.Fprintf(&out, `<text class="small" x="%.1f" y="%d">%s</text>`+"\n", x0, top-10, escapeXML(c.title))
		for _, part := range []float64{0, 0.5, 1} {
			fmt.Fprintf(&out, `<line class="grid" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`, x0, x0+wide, y(part*mostY), y(part*mostY))
			fmt.Fprintf(&out, `<text class="small" x="%.1f" y="%.1f" text-anchor="end">%.4g</text>`+"\n", x0-6, y(part*mostY)+4, part*mostY)
		}
		var points []string
		for j := range c.x {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(c.x[j]), y(c.y[j])))
			fmt.Fprintf(&out, `<circle class="dot" cx="%.1f" cy="%.1f" r="3"/>`, x(c.x[j]), y(c.y[j]))
		}
		fmt.Fprintf(&out, `<polyline class="line" points="%s"/>`+"\n", strings.Join(points, " "))
		fmt.Fprintf(&out, `<text class="small" x="%.1f" y="%d" text-anchor="end">%.0f nodes</text>`+"\n", x0+wide, top+high+18, mostX)
	}
	return drawSVG(left+len(curves)*(wide+gap), top+high+30, title, out.String())
}

// roundUp is the next of 1, 2, 5 times a power of ten.
func roundUp(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= v {
			return m * power
		}
	}
	return 10 * power
}
