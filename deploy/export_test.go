package deploy

import (
	"time"

	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/inventory"
)

// Changed has v take files for changed at a time.
func Changed(v Verified, at func(path string) (time.Time, error)) Verified {
	v.changedAt = at
	return v
}

// WithError is a node with an error.
func WithError(n NodeReport, err error) NodeReport {
	n.Error, n.cause = err.Error(), cause.Of(err)
	return n
}

// Crowded has a deployment take itself for one to many more nodes.
func Crowded(d *Deployment) { d.installs += mostWithCode }

// AdviceTexts are the hints by their codes.
func AdviceTexts() map[string]string { return adviceTexts() }

// AdviceFor is the hint for a code that a node sent.
func AdviceFor(code string, h inventory.Host) string { return adviceFor(code, h) }
