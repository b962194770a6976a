package deploy

import (
	"fmt"
	"time"

	"github.com/dsbuild/dsbuild/deploy/wheels"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/signing"
)

// Accept judges the wheel in a file, whose SHA-256 is sum, by the policy, unless it has been judged. Apply
// installs only accepted wheels.
func (d *Deployment) Accept(file, sum string) error {
	if _, done := d.accepted[sum]; done {
		return nil
	}
	signed, err := d.opt.Policy.Accept(file, sum, time.Now())
	if err == nil {
		d.accepted[sum] = signed
	}
	return err
}

// acceptOffered judges the wheels of the deploy, before a node is asked, and leaves out those that are refused.
// If none is left, it returns the error of the first.
func (d *Deployment) acceptOffered() error {
	var left []wheels.Wheel
	var refused []error
	for _, w := range d.opt.Wheels {
		if err := d.Accept(w.Path, w.Manifest.SHA256); err != nil {
			refused = append(refused, fmt.Errorf("%s: %w", w.Manifest.Name, err))
			continue
		}
		left = append(left, w)
	}
	if len(left) == 0 && len(refused) > 0 {
		return refused[0]
	}
	for _, err := range refused {
		d.opt.Reporter.Note("left out: %v", err)
	}
	d.opt.Wheels = left
	return nil
}

// refuseUnaccepted refuses the nodes of a plan on which dsbuild would install a wheel that nobody has accepted.
func (d *Deployment) refuseUnaccepted(plan *Plan) {
	for i := range plan.Nodes {
		if p := &plan.Nodes[i]; p.Action == Install {
			if err := d.Accept(p.Wheel.Path, p.Wheel.Manifest.SHA256); err != nil {
				p.Action, p.Reasons, p.Hint = Refuse, []string{err.Error()}, fault.Hint(err)
			}
		}
	}
	plan.ApplyPolicy(d.opt.Policy)
}

// ApplyPolicy refuses the nodes that need other wheels beside DeepSpeed's, unless the policy accepts these.
func (p *Plan) ApplyPolicy(policy *signing.Policy) {
	if policy == nil || policy.Companions {
		return
	}
	for i := range p.Nodes {
		if n := &p.Nodes[i]; n.Action == Install && len(n.Extra)+len(n.Fetch) > 0 {
			n.Action, n.Reasons = Refuse, []string{"other wheels would be installed with it, and nobody has signed these"}
			n.Hint = "install them there first, or let the policy accept them (companions: accept)"
		}
	}
}
