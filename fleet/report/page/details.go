package page

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/htmlpage"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/node"
)

// fact is a property of a node that the table has no column for. A label that begins with "# " begins a part.
type fact struct{ label, text string }

// labels returns the labels of what record says about a node, in the same order.
func (t *table) labels(steps []string) []htmlpage.Text {
	all := []htmlpage.Text{"# Outcome", "Status", "Error", "Hint", "# Compared"}
	for _, c := range t.columns {
		if c.is != nil {
			all = append(all, c.title)
		}
	}
	all = append(all, "# Time by step")
	for _, s := range steps {
		all = append(all, htmlpage.Text(s))
	}
	for _, f := range details(member{}) {
		all = append(all, htmlpage.Text(f.label))
	}
	return all
}

// record returns what is known about a node.
func (t *table) record(m member, cells []htmlpage.Cell, steps []string) htmlpage.Record {
	status := string(m.Status)
	if m.Error != "" && m.Step != "" {
		status += " at " + m.Step
	}
	values := []htmlpage.Text{"", htmlpage.Text(status), htmlpage.Text(m.Complaint()), htmlpage.Text(m.Hint), ""}
	for i, c := range t.columns {
		switch {
		case c.is == nil:
		case cells[i+1].Odd != "":
			values = append(values, "≠ "+cells[i+1].Text+" ("+htmlpage.Text(c.whose)+": "+c.shown(c.norm)+")")
		default:
			values = append(values, cells[i+1].Text)
		}
	}
	values = append(values, "")
	for _, s := range steps {
		took := ""
		if m.Seconds[s] > 0 {
			took = fmt.Sprintf("%.1f s", m.Seconds[s])
		}
		values = append(values, htmlpage.Text(took))
	}
	for _, f := range details(m) {
		values = append(values, htmlpage.Text(f.text))
	}
	return htmlpage.Record{Name: htmlpage.Text(m.Name), Values: values}
}

// steps returns the steps that any node went through, in their order.
func steps(members []member) []string {
	seen := map[string]bool{}
	for _, m := range members {
		for s := range m.Seconds {
			seen[s] = true
		}
	}
	order := []string{"connect", "probe", "fit", "put", "install", "rollback", "verify", "record"}
	known := slices.DeleteFunc(order, func(s string) bool { return !seen[s] })
	for _, s := range known {
		delete(seen, s)
	}
	return slices.Concat(known, slices.Sorted(maps.Keys(seen)))
}

// details returns the properties that do not fit into the table. Every node has the same labels. A text is
// empty if the report has no value for it.
func details(m member) []fact {
	f := m.Facts
	if f == nil {
		f = &node.Facts{}
	}
	known := m.Facts != nil
	is := f.DeepSpeed
	if is == nil {
		is = &node.Installed{}
	}
	free, temporary := "", ""
	if known {
		free, temporary = ui.Size(f.FreeBytes), ui.Size(f.FreeTmpBytes)
	}
	return []fact{
		{"# DeepSpeed", ""},
		{"Wheel", m.Wheel},
		{"Installed with it", strings.Join(m.ExtraWheels, ", ")},
		{"Before", version(m.Before)},
		{"Now", version(m.After)},
		{"Found by the probe", is.Version},
		{"Package", is.Path},
		{"Operators", strings.Join(is.Ops, ", ")},
		{"Files", integrity(f.DeepSpeed)},
		{"Built for", builtFor(is.Build)},
		{"Previous version, for a rollback", previous(f.Previous)},
		{"Remarks", strings.Join(m.Remarks, "\n")},
		{"Log", m.Log},

		{"# Environment", ""},
		{"Interpreter", f.Executable},
		{"Prefix", f.Prefix},
		{"Kind", f.Environment},
		{"Container", f.Container},
		{"Python tag", f.Tag},
		{"site-packages", f.SitePackages},
		{"Identity of site-packages", f.SiteID},
		{"pip", f.Pip},
		{"Writable", yes(known, f.Writable)},
		{"Externally managed", yes(known && f.ExternallyManaged, true)},
		{"CXX11 ABI", yes(f.CXX11ABI != nil, f.CXX11ABI != nil && *f.CXX11ABI)},
		{"In use by", processes(f.InUse)},
		{"Unfinished change", yes(f.Unfinished, true)},
		{"Files of an interrupted run", yes(f.Leftovers, true)},

		{"# Machine", ""},
		{"Platform", f.Platform},
		{"libstdc++", f.Libstdcxx},
		{"GPUs", f.Devices()},
		{"Free space, environment", free},
		{"Free space, temporary", temporary},
		{"Not known", strings.Join(f.Missing, "\n")},
	}
}

func version(v *report.Version) string {
	switch {
	case v == nil:
		return ""
	case v.SHA256 == "":
		return v.Version
	}
	return v.Version + "\nsha256 " + v.SHA256
}

// integrity describes whether the files of a DeepSpeed are those of its wheel.
func integrity(is *node.Installed) string {
	switch {
	case is == nil:
		return ""
	case is.Intact:
		return "match their RECORD"
	case len(is.Altered) > 0:
		return "altered:\n" + strings.Join(is.Altered, "\n")
	case is.SHA256 == "":
		return "not installed by dsbuild"
	}
	return "altered"
}

func builtFor(b *node.Build) string {
	if b == nil {
		return ""
	}
	return joined(labelled{"torch", b.Torch}, labelled{"CUDA", b.CUDA}, labelled{"NCCL", b.NCCL}, labelled{"", b.Accelerator})
}

func previous(p *node.Previous) string {
	if p == nil {
		return ""
	}
	return cmp.Or(p.Version, "no DeepSpeed")
}

func processes(all []node.Process) string {
	var lines []string
	for _, p := range all {
		line := fmt.Sprintf("%s, pid %d of %s", p.Command, p.PID, p.User)
		if p.Job != "" {
			line += ", " + p.Job
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func yes(known, is bool) string {
	switch {
	case !known:
		return ""
	case is:
		return "yes"
	}
	return "no"
}
