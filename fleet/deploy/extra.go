package deploy

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"deps.dev/util/pypi"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/wheel"
)

// Deps is the policy for requirements that a node does not meet.
type Deps string

// The values of --deps.
const (
	DepsRefuse Deps = "refuse" // list them and change nothing
	DepsBundle Deps = "bundle" // install them from a wheelhouse
)

// LoadBundle reads the wheelhouse at dir. If dir is empty, it reads the wheelhouse next to the wheel at
// wheelPath or, if wheelPath is a directory, in it.
func LoadBundle(ctx context.Context, dir, wheelPath string) (*wheel.Bundle, error) {
	if dir == "" {
		if info, err := os.Stat(wheelPath); err != nil || !info.IsDir() {
			wheelPath = filepath.Dir(wheelPath)
		}
		dir = filepath.Join(wheelPath, wheel.WheelhouseDir)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, fault.New(fault.Usage, "build one with: dsbuild wheel --bundle, or pass --bundle DIR",
			"no wheelhouse: %s is not a directory", dir)
	}
	b, err := wheel.ReadBundle(ctx, dir)
	return &b, err
}

// demand is a requirement of one package.
type demand struct {
	requirement string
	extras      []string // the extras of that package that were requested
}

// missing is a requirement that neither the node nor the wheelhouse meets.
type missing struct {
	requirement string // in pip's syntax
	why         string // the requirement for a message, with the version found instead
}

// reasonsOf returns the missing requirements as text for a message.
func reasonsOf(lacks []missing) []string {
	return lists.Map(lacks, func(l missing) string { return l.why })
}

// picker finds the requirements that a node does not meet, and the wheels in the wheelhouse that
// meet them.
type picker struct {
	tables  *compat.Tables
	facts   node.Facts
	offered []wheel.BundleWheel // by the wheelhouse
	have    map[string]string
	extra   []wheel.BundleWheel
	lacks   []missing
	queue   []demand
	asked   map[string]bool
}

// MissingRequirements returns the requirements of a wheel that a node does not meet, for a message.
func MissingRequirements(w wheel.Loaded, f node.Facts) ([]string, error) {
	_, lacks, err := chooseExtraWheels(nil, w, f, nil, false)
	return reasonsOf(lacks), err
}

// chooseExtraWheels returns the wheels that must be installed together with w on a node, and the requirements
// that neither the node nor the wheelhouse meets. A companion is skipped if the node already has
// that version, unless dsbuild installed it there from another wheel: two commits may carry the
// same version. With force, companions are always installed again.
func chooseExtraWheels(
	tables *compat.Tables, w wheel.Loaded, f node.Facts, bundle *wheel.Bundle, force bool,
) (extra []wheel.BundleWheel, lacks []missing, err error) {
	p := picker{tables: tables, facts: f, have: maps.Clone(f.Dists), asked: map[string]bool{}}
	if p.have == nil {
		p.have = map[string]string{}
	}
	if bundle != nil {
		p.offered = bundle.Wheels
	}
	p.demand(w.Requires, nil)
	for _, b := range p.offered {
		if b.Why != wheel.Companion {
			continue
		}
		noted, ours := f.ExtraWheels[b.Name]
		if have, ok := f.Dists[b.Name]; !ok || !satisfies(have, "=="+b.Version) || ours && noted != b.SHA256 || force {
			p.take(b, "companion")
		}
		p.demand(b.Requires, nil)
	}
	for len(p.queue) > 0 {
		next := p.queue[0]
		p.queue = p.queue[1:]
		if err := p.meet(next); err != nil {
			return nil, nil, err
		}
	}
	slices.SortFunc(p.extra, func(a, b wheel.BundleWheel) int { return strings.Compare(a.File, b.File) })
	return p.extra, p.lacks, nil
}

// demand queues requirements; each is queued once.
func (p *picker) demand(requires, extras []string) {
	for _, r := range requires {
		key := r + "\x00" + strings.Join(extras, ",")
		if !p.asked[key] {
			p.asked[key] = true
			p.queue = append(p.queue, demand{r, extras})
		}
	}
}

// take adds a wheel of the wheelhouse if the node can install it and its code runs there. If not, it records a lack
// and returns false.
func (p *picker) take(b wheel.BundleWheel, why string) bool {
	if !slices.ContainsFunc(b.Tags, func(t string) bool { return compat.Installs(t, p.facts) }) {
		const alien = "%s (%s in the wheelhouse is incompatible with Python %s, %s, glibc %s)"
		f := p.facts
		p.lacks = append(p.lacks, missing{b.Name, fmt.Sprintf(alien, why, b.File, f.Python, f.Platform, f.Glibc)})
		return false
	}
	if v := p.tables.Fit(b.Contents.ManifestFor(p.facts.Platform, b.File), p.facts); !v.OK() {
		why := fmt.Sprintf("%s (%s in the wheelhouse does not run on this node: %s)", why, b.File, strings.Join(v.Reasons, "; "))
		p.lacks = append(p.lacks, missing{b.Name, why})
		return false
	}
	p.extra = append(p.extra, b)
	p.have[b.Name] = b.Version
	p.demand(b.Requires, nil)
	return true
}

// meet handles one requirement: the node meets it, a wheel of the wheelhouse is added, or a lack
// is recorded.
func (p *picker) meet(want demand) error {
	d, err := pypi.ParseDependency(want.requirement)
	if err != nil {
		return fmt.Errorf("requirement %q: %w", want.requirement, err)
	}
	needed, err := p.needed(d.Environment, want.extras)
	switch {
	case err != nil:
		return fmt.Errorf("requirement %q: %w", want.requirement, err)
	case !needed:
		return nil
	}
	name := pypi.CanonPackageName(d.Name)
	have, ok := p.have[name]
	var there *wheel.BundleWheel
	if at := slices.IndexFunc(p.offered, func(b wheel.BundleWheel) bool { return b.Name == name }); at >= 0 {
		there = &p.offered[at]
	}
	if !ok || !satisfies(have, d.Constraint) {
		asked := d.Name + d.Constraint
		if d.Extras != "" {
			asked = d.Name + "[" + d.Extras + "]" + d.Constraint
		}
		what := d.Name + d.Constraint
		if ok {
			what += fmt.Sprintf(" (this node has %s)", have)
		}
		switch {
		case slices.ContainsFunc(p.extra, func(a wheel.BundleWheel) bool { return a.Name == name }):
			p.lacks = append(p.lacks, missing{asked, fmt.Sprintf("%s%s (the wheelhouse has %s)", d.Name, d.Constraint, have)})
			return nil
		case there == nil:
			p.lacks = append(p.lacks, missing{asked, what})
			return nil
		case !satisfies(there.Version, d.Constraint):
			p.lacks = append(p.lacks, missing{asked, what + fmt.Sprintf(" (the wheelhouse has %s)", there.Version)})
			return nil
		case !p.take(*there, what):
			return nil
		}
	}
	// Only for the wheelhouse's own version does dsbuild know the requirements of its extras.
	extras := strings.FieldsFunc(d.Extras, func(r rune) bool { return r == ',' || r == ' ' })
	if len(extras) > 0 && there != nil && p.have[name] == there.Version {
		p.demand(there.Requires, extras)
	}
	return nil
}

// needed evaluates a marker for a package requested with extras; it holds if it holds for no
// extra or for one of them.
func (p *picker) needed(marker string, extras []string) (bool, error) {
	for _, extra := range append([]string{""}, extras...) {
		holds, err := markerHolds(marker, p.facts, extra)
		if err != nil || holds {
			return holds, err
		}
	}
	return false, nil
}

// extraSize is the size in bytes of the wheels sent to a node besides DeepSpeed's.
func extraSize(extra []wheel.BundleWheel) int64 {
	var n int64
	for _, a := range extra {
		n += a.Size
	}
	return n
}

// extraWheelNames returns each wheel as "name version": "numpy 2.3.2", "hjson 3.1.0".
func extraWheelNames(extra []wheel.BundleWheel) []string {
	return lists.Map(extra, func(a wheel.BundleWheel) string { return a.Name + " " + a.Version })
}
