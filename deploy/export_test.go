package deploy

import (
	"github.com/dsbuild/dsbuild/inventory"
	"time"

	"github.com/dsbuild/dsbuild/wheel"
)

// Changed has v take files for changed at a time.
func Changed(v Verified, at func(path string) (time.Time, error)) Verified {
	v.changedAt = at
	return v
}

// WithAftermath is a node that failed, and of which something became then.
func WithAftermath(n NodeReport, why, after string) NodeReport {
	n.aftermath = "; " + after
	n.Error = why + n.aftermath
	return n
}

// Lacking is how many bytes a node lacks of a file in parts, by what it says.
func Lacking(parts []wheel.Part, missing [][2]int) (int64, error) {
	l, err := (&inParts{parts: parts}).lacking(missing)
	return l.bytes(), err
}

// Crowded has a deployment take itself for one to many more nodes.
func Crowded(d *Deployment) { d.installs += mostWithCode }

// AdviceTexts are the hints by their codes.
func AdviceTexts() map[string]string { return adviceTexts() }

// AdviceFor is the hint for a code that a node sent.
func AdviceFor(code string, h inventory.Host) string { return adviceFor(code, h) }
