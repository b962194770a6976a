package compat

import (
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// Verdict says whether a wheel runs on a node. Reasons holds every refusal in
// words; Remarks what is worth knowing but refuses nothing.
type Verdict struct {
	Reasons []string
	Remarks []string
}

// OK reports whether nothing speaks against the wheel.
func (v Verdict) OK() bool { return len(v.Reasons) == 0 }

// Fit compares what a wheel was built for with what a node has.
func Fit(m wheel.Manifest, f node.Facts) Verdict {
	return Verdict{}
}
