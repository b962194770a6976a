package verify

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// Hints for a node that differs.
const (
	byHandHint = "reinstall this DeepSpeed, whose files have changed"
	alikeHint  = "make the environments match with the tool that created them; dsbuild changes only DeepSpeed"
	kindsHint  = "make the environments match; if they differ on purpose, pass their wheels with --wheel, " +
		"or verify each node type separately with --limit"
)

// deployHint is the hint for a node that should get its wheel; setStatus adds which.
func deployHint() string { return "install the wheel: " + fault.Deploy().String() }

// chooseHint is the hint if no node shows which software is right.
func chooseHint(*nodeState, node.Deviation) string {
	return "decide which wheel they should run, and install it: " + fault.Command{Do: "deploy", Wheel: &fault.WheelFile{}}.String()
}

// hintAgainst is the hint for a node that deviates from the majority in its DeepSpeed.
func hintAgainst(n *nodeState, d node.Deviation) string {
	if d.Tie != nil {
		return chooseHint(n, d)
	}
	return deployHint()
}

// fitHint is the hint for a node on which a DeepSpeed with this manifest does not run.
func (n *nodeState) fitHint(m wheel.Manifest) string {
	if _, try := n.Facts.NoTorch(); try != "" {
		return try
	}
	const alike = "match its environment to the other nodes'"
	if release := m.Release(); release != "" {
		return alike + ", or build a wheel for it: " + fault.Command{Do: "ship", Flags: []string{"--deepspeed", release}}.String()
	}
	return alike
}

// compareNodes adds to each node its differences: those that the node shows alone, those from its wheel,
// and those from most other nodes. files maps the sha256 of each wheel to its files. It is pure.
func compareNodes(tables *compat.Tables, all []*nodeState, files map[string]map[string]string) {
	for _, n := range all {
		n.addOwnDifferences(tables)
		n.compareWithWheel(files)
	}
	for _, group := range groupBy(all, func(n *nodeState) string { return n.group() }) {
		compareProperties(group)
	}
	installed := slices.DeleteFunc(slices.Clone(all), func(n *nodeState) bool { return n.installed == nil })
	version := func(n *nodeState) string { return n.installed.Version + " " + n.alike() }
	for _, group := range groupBy(installed, version) {
		// Compare the companion wheels of nodes that report the same version of them.
		names := map[string]bool{}
		for _, n := range group {
			for name := range n.Facts.ExtraWheels {
				names[name] = true
			}
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			sum := func(f node.Facts) string { return report.ShortSum(f.ExtraWheels[name]) }
			came := []node.Property{{Name: name + ", wheel", Must: true, Unknown: true, Of: sum}}
			for _, alike := range groupBy(group, func(n *nodeState) string { return n.Facts.Dists[name] }) {
				compareAll(alike, came, func(n *nodeState, d node.Deviation) string {
					if d.Tie != nil {
						return chooseHint(n, d)
					}
					return n.hintFor("deploy-bundle-force")
				})
			}
		}
		compareBuilds(slices.DeleteFunc(slices.Clone(group), func(n *nodeState) bool { return n.wheel != nil }))
	}
	for _, n := range all {
		n.compareWithNote()
	}
}

// compareBuilds compares nodes with one version that have no wheel to be compared with: first their build, by the wheel's
// manifest, then the nodes with each build by the wheel's sha256 and by their files.
func compareBuilds(group []*nodeState) {
	sums, builds := map[string]string{}, map[*node.Installed]string{}
	for _, n := range group {
		if d := n.Facts.DeepSpeed; d != nil && d.SHA256 != "" {
			sums[n.installed.build()] = fmt.Sprintf(" (sha256 %s)", report.ShortSum(d.SHA256))
		}
	}
	for _, n := range group {
		switch build := n.installed.build(); {
		case n.Facts.DeepSpeed == nil:
		case build == "":
			builds[n.Facts.DeepSpeed] = "from another tool"
		default:
			builds[n.Facts.DeepSpeed] = build + sums[build]
		}
	}
	built := func(f node.Facts) string { return builds[f.DeepSpeed] }
	compareAll(group, []node.Property{{Name: "build", Must: true, Unknown: true, Of: built}}, hintAgainst)
	came := []node.Property{{Name: "wheel", Must: true, Unknown: true, Of: func(f node.Facts) string {
		if f.DeepSpeed == nil {
			return ""
		}
		return report.ShortSum(f.DeepSpeed.SHA256)
	}}}
	for _, alike := range groupBy(group, func(n *nodeState) string { return n.installed.build() }) {
		compareAll(alike, came, hintAgainst)
		compareFiles(alike)
	}
}

// groupBy groups nodes by a key, in the order of each key's first node.
func groupBy(all []*nodeState, key func(*nodeState) string) [][]*nodeState {
	var groups [][]*nodeState
	place := map[string]int{}
	for _, n := range all {
		k := key(n)
		at, ok := place[k]
		if !ok {
			at, groups = len(groups), append(groups, nil)
			place[k] = at
		}
		groups[at] = append(groups[at], n)
	}
	return groups
}

// group is equal for nodes that are compared with each other: nodes of the same kind of wheel.
func (n *nodeState) group() string {
	if n.wheel == nil {
		return ""
	}
	return compat.AlikeKey(n.wheel.Manifest, *n.Facts)
}

// addOwnDifferences adds the differences that one node shows without a comparison.
func (n *nodeState) addOwnDifferences(tables *compat.Tables) {
	if n.Facts.MissingPython() != "" {
		why, try := n.Facts.Unusable()
		n.differ(try, "%s", why)
		return
	}
	if n.Facts.Unfinished {
		n.differ("wait for the running deploy; if none is running, deploy again: "+fault.Deploy().String(),
			"a deploy is in progress or was interrupted")
	}
	if n.Facts.Leftovers && !n.Facts.Unfinished {
		n.note("files of a running or interrupted deploy are in %s; the next deploy removes them", node.QuotePath(n.Facts.Home()))
	}
	if n.Facts.DeepSpeed == nil {
		n.runsOther = true
		if len(n.differs) == 0 { // else inspect_files.py has reported its DeepSpeed
			n.differ(deployHint(), "no DeepSpeed in the environment of %s", node.QuotePath(n.Facts.Executable))
		}
	}
	l := n.installed
	if l == nil {
		return
	}
	if reasons := l.unfit(tables, *n.Facts); n.wheel == nil && len(reasons) > 0 {
		n.runsOther = true
		n.differ(n.fitHint(l.manifest()), "installed DeepSpeed is incompatible: %s", strings.Join(reasons, "; "))
	}
	if l.Bare && n.Facts.Unreadable {
		why, try := n.Facts.NoPermission()
		n.differ(try, "%s", why)
	}
	if l.unreadable.Count > 0 {
		n.differ(n.hintFor("no-permission"), "%s", l.unreadable.sentence("cannot be read by this user", "cannot be read by this user"))
	}
	n.addChangedFiles()
	if l.Litter.Count > 0 {
		n.note("%s", l.Litter.sentence("is in DeepSpeed's directory, but not in RECORD", "are in DeepSpeed's directory, but not in RECORD"))
	}
	if n.Facts.CondaRecord != "" && !l.Conda {
		n.note("%s", n.Facts.CondaNote())
	}
	if l.Bare {
		n.note("installed DeepSpeed has no RECORD: its files are only compared with other nodes'")
	}
}

// addChangedFiles adds the files that are not as they were installed.
func (n *nodeState) addChangedFiles() {
	l := n.installed
	try := byHandHint
	if l.Noted != nil {
		try = "reinstall the wheel, whose files have changed: " + fault.Deploy().String()
	}
	if l.Code.Count > 0 {
		try += "; if Python was updated since, its byte code differs: delete it, and Python compiles it again"
	}
	for _, c := range []struct {
		p         paths
		one, many string
	}{
		{l.mismatched, "does not match RECORD", "do not match RECORD"},
		{l.missing, "is missing", "are missing"},
		{l.unlisted, "is code that is not in RECORD", "are code that is not in RECORD"},
		{l.Links, "is a link to a directory that is not in RECORD", "are links to directories that are not in RECORD"},
		{l.Code, "is byte code that does not match its module", "are byte code that does not match the modules"},
	} {
		if c.p.Count > 0 {
			n.differ(try, "%s", c.p.sentence(c.one, c.many))
		}
	}
}

// maxPaths is how many paths a sentence names; it counts the rest.
const maxPaths = 5

// sentence makes a sentence about paths.
func (p paths) sentence(one, many string) string {
	named := slices.Clone(p.First[:min(len(p.First), maxPaths)])
	for i, path := range named {
		named[i] = node.QuotePath(path)
	}
	switch more := p.Count - len(named); {
	case len(named) == 0 && p.Count == 1: // a node may send a count without names
		return "a file " + one
	case len(named) == 0:
		return fmt.Sprintf("%d files %s", p.Count, many)
	case more > 0:
		return fmt.Sprintf("%s and %d more %s", strings.Join(named, ", "), more, many)
	case len(named) == 1:
		return named[0] + " " + one
	}
	return strings.Join(named, ", ") + " " + many
}

// newPaths makes paths of a list, sorted.
func newPaths(all []string) paths {
	slices.Sort(all)
	return paths{len(all), all}
}

// compareWithWheel compares a node with the wheel that it should run.
func (n *nodeState) compareWithWheel(files map[string]map[string]string) {
	w, d := n.wheel, n.Facts.DeepSpeed
	if w == nil && len(n.unfit) > 0 {
		n.differ("select one wheel with --wheel, or fewer nodes with --limit",
			"cannot choose a wheel: %s", strings.Join(n.unfit, "; "))
	}
	if w == nil || d == nil || n.Facts.MissingPython() != "" {
		return
	}
	name, want := w.Manifest.Name, files[w.Manifest.SHA256]
	n.proven = d.Version == w.Version && n.installed != nil && maps.Equal(want, n.installed.contents.files)
	other := n.otherBuild(w)
	n.runsOther = other != "" || len(n.unfit) > 0
	if other != "" {
		n.differ(deployHint(), "runs %s, not %s (sha256 %s)", other, name, report.ShortSum(w.Manifest.SHA256))
	}
	if len(n.unfit) > 0 {
		n.differ(n.fitHint(w.Manifest), "%s is incompatible: %s", name, strings.Join(n.unfit, "; "))
	}
	if other != "" || n.installed == nil {
		return
	}
	if strays := n.strays(want); strays.Count > 0 {
		n.differ(deployHint(), "%s", strays.sentence("does not match the wheel", "do not match the wheel"))
	}
	if n.proven && d.SHA256 == "" {
		n.note("not installed by dsbuild, but all files match %s", name)
	}
}

// otherBuild describes the DeepSpeed of a node that has another build than a wheel. It returns "" if it has that build, or
// if its build is unknown.
func (n *nodeState) otherBuild(w *wheel.Loaded) string {
	d, build := n.Facts.DeepSpeed, n.installed.build()
	switch {
	case d.Version != w.Version, d.SHA256 != "" && !n.runsWheel(w):
		return n.version().String()
	case d.SHA256 != "", n.proven, build == w.Manifest.Name:
		return ""
	case build != "":
		return build
	case w.Manifest.PlanDigest != "" && n.installed != nil: // dsbuild built it
		return n.version().String() + " from another tool"
	}
	return ""
}

// strays returns the files in which a node differs from want, except those that another
// difference already names.
func (n *nodeState) strays(want map[string]string) paths {
	named := map[string]bool{}
	for _, p := range []paths{n.installed.mismatched, n.installed.missing, n.installed.unlisted, n.installed.unreadable} {
		for _, name := range p.First {
			named[name] = true
		}
	}
	var strays []string
	for name, sum := range want {
		if n.installed.contents.files[name] != sum && !named[name] {
			strays = append(strays, name)
		}
	}
	for name := range n.installed.contents.files {
		if _, ok := want[name]; !ok && !named[name] {
			strays = append(strays, name)
		}
	}
	return newPaths(strays)
}

// compareProperties compares the facts of nodes that should be equal.
func compareProperties(group []*nodeState) {
	properties := node.Properties()
	if group[0].wheel != nil { // compareWithWheel has already compared DeepSpeed with the wheel
		properties = slices.DeleteFunc(properties, func(p node.Property) bool { return p.Name == "deepspeed" })
	}
	group = slices.DeleteFunc(slices.Clone(group), func(n *nodeState) bool { return n.Facts.MissingPython() != "" })
	compareAll(group, properties, func(n *nodeState, d node.Deviation) string {
		switch {
		case n.wheel != nil:
			return alikeHint
		case d.What == "deepspeed":
			return hintAgainst(n, d)
		}
		return kindsHint
	})
}

// compareAll adds to each node of a group its deviations from the majority. Nodes that do not run
// their wheel do not count towards the majority.
func compareAll(group []*nodeState, properties []node.Property, try func(*nodeState, node.Deviation) string) {
	facts, votes := make([]node.Facts, len(group)), make([]bool, len(group))
	for i, n := range group {
		facts[i], votes[i] = *n.Facts, !n.runsOther
	}
	names := lists.Map(group, func(n *nodeState) string { return n.Host.Name })
	for i, deviations := range node.Deviations(facts, properties, votes) {
		for _, d := range deviations {
			n := group[i]
			reported := d.What == "deepspeed" && n.Facts.DeepSpeed == nil || d.What == "cuda" && n.Facts.Torch == ""
			if !reported {
				n.differ(try(n, d), "%s", d.Describe(names))
			}
		}
	}
}

// compareFiles compares the files of nodes that report the same version.
func compareFiles(group []*nodeState) {
	// Nodes whose files do not match their RECORD count only if there are no others.
	matching := slices.DeleteFunc(slices.Clone(group), func(n *nodeState) bool { return !n.matchesRecord() })
	if len(matching) == 0 {
		matching = group
	}
	kinds := groupBy(matching, func(n *nodeState) string { return n.installed.contents.sum })
	// The largest group comes first.
	slices.SortStableFunc(kinds, func(a, b []*nodeState) int { return cmp.Compare(len(b), len(a)) })
	norm, tie := kinds[0][0], len(kinds) > 1 && len(kinds[0]) == len(kinds[1])
	for _, n := range group {
		alike := n.installed.contents.sum == norm.installed.contents.sum
		switch {
		case !alike && !tie:
			if strays := n.strays(norm.installed.contents.files); strays.Count > 0 {
				from := fmt.Sprintf(" from %d of %s with this version, regardless of RECORD",
					len(kinds[0]), ui.Count(len(group), "node"))
				n.differ(deployHint(), "%s", strays.sentence("differs"+from, "differ"+from))
			}
		case tie && n.matchesRecord():
			other := norm
			if alike {
				other = kinds[1][0]
			}
			from := fmt.Sprintf(" from %s with this version, regardless of RECORD: no majority", other.Host.Name)
			n.differ(chooseHint(n, node.Deviation{}), "%s", n.strays(other.installed.contents.files).sentence("differs"+from, "differ"+from))
		}
	}
}

// matchesRecord reports whether a node's files match its RECORD.
func (n *nodeState) matchesRecord() bool {
	l := n.installed
	all := []paths{l.mismatched, l.missing, l.unreadable, l.unlisted, l.Links, l.Code}
	return !slices.ContainsFunc(all, func(p paths) bool { return p.Count != 0 })
}

// compareWithNote compares dsbuild's own note of the installation with the node. This finds a RECORD
// that was changed to agree with changed files. It also finds an installation by hand, which
// is only a note if the files match the wheel. A node's note proves nothing about
// another node, because the node may lie.
func (n *nodeState) compareWithNote() {
	if n.installed == nil {
		return
	}
	noted, build := n.installed.Noted, n.installed.build()
	switch {
	case noted == nil && build != "" && n.wheel == nil:
		n.note("installed by another tool: %s", build)
	case noted == nil, noted.Same:
	case noted.Version != n.installed.Version:
		n.note("dsbuild installed DeepSpeed %s, which another tool has replaced", node.PlainVersion(noted.Version))
	case build != noted.Wheel && (build != "" || hasBuildTag(noted.Wheel)):
		n.note("dsbuild installed %s, which another tool has replaced by %s",
			node.QuotePath(noted.Wheel), cmp.Or(build, "a build that is not dsbuild's"))
	case n.proven:
		n.note("reinstalled by another tool")
	default:
		n.differ(deployHint(), "RECORD has changed since dsbuild installed %s", node.QuotePath(noted.Wheel))
	}
}

// hasBuildTag reports whether a wheel has a build tag in its name, as the wheels have that dsbuild builds for every torch.
func hasBuildTag(name string) bool {
	f, err := wheel.ParseFileName(name)
	return err == nil && f.Build != ""
}
