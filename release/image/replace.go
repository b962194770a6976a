package image

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"deps.dev/util/pypi"
)

// layOut installs the wheels into the layer. It hides the older versions of their distributions, and
// refuses a wheel that would replace a file of anything else.
func (p *Plan) layOut() error {
	var all []*installation
	for _, a := range p.archives {
		i, err := installWheel(a, p.target)
		if err != nil {
			return err
		}
		all = append(all, i)
	}
	var err error
	if p.content, err = combine(all); err != nil {
		return err
	}
	for _, i := range all {
		if err := p.replaceOld(i); err != nil {
			return err
		}
	}
	slices.Sort(p.Hidden)
	p.Hidden = slices.Compact(p.Hidden)
	written := map[string]bool{}
	for _, f := range p.content.files {
		written[f.path] = true
	}
	for _, h := range p.Hidden {
		if !written[h] && !p.content.folders[h] {
			p.content.addWhiteout(path.Dir(h), whiteout+path.Base(h))
		}
	}
	return nil
}

// replaceOld plans what the layer hides of older versions of a distribution.
func (p *Plan) replaceOld(i *installation) error {
	site := relative(p.target.site)
	var old []distribution
	if p.files != nil {
		old = p.files.packages(site, i.name)
	} else if version := p.known.value(FactDeepSpeed); version != None {
		old = []distribution{{"deepspeed", version}}
	}
	own := map[string]bool{} // files of the older versions
	for _, d := range old {
		p.Remarks = append(p.Remarks, fmt.Sprintf("the layer replaces %s %s of the base", d.name, d.version))
		p.Hidden = append(p.Hidden, path.Join(site, d.info()))
		if p.files == nil {
			continue
		}
		recorded, ok := p.files.recorded(site, d)
		if !ok {
			p.Remarks = append(p.Remarks, fmt.Sprintf("%s %s has no RECORD: its commands stay", d.name, d.version))
			own[path.Join(site, strings.ReplaceAll(pypi.CanonPackageName(i.name), "-", "_"), "__init__.py")] = true
		}
		for _, f := range recorded {
			own[f] = true
			if !strings.HasPrefix(f, site+"/") && path.Base(path.Dir(f)) == "bin" && p.files.taken(f) == f {
				p.Hidden = append(p.Hidden, f)
			}
		}
	}
	if p.files == nil {
		if len(old) > 0 {
			p.content.addWhiteout(path.Join(site, "deepspeed"), opaqueWhiteout)
			p.content.addWhiteout(path.Join(site, i.archive.DistInfo()), opaqueWhiteout)
		}
		return nil
	}
	return p.checkPlaces(i, site, own)
}

// checkPlaces refuses an installation that would replace a file of the base, or add one to a package
// of it, unless that belongs to an older version of the same distribution: own.
func (p *Plan) checkPlaces(i *installation, site string, own map[string]bool) error {
	replaced := map[string]bool{i.archive.DistInfo(): true}
	isDeepSpeed := pypi.CanonPackageName(i.name) == "deepspeed"
	if isDeepSpeed {
		replaced["deepspeed"] = true // no other wheel may have it
	}
	for _, f := range i.files {
		below, inSite := strings.CutPrefix(f.path, site+"/")
		top, _, isFolder := strings.Cut(below, "/")
		if inSite && isFolder && own[path.Join(site, top, "__init__.py")] {
			replaced[top] = true
		}
		if inSite && replaced[top] || isDeepSpeed && !inSite && isCommandOfDeepSpeed(path.Base(f.path)) {
			continue
		}
		inTheWay := p.files.taken(f.path)
		if inTheWay == "" && inSite && isFolder {
			for _, module := range []string{top + "/__init__.py", top + ".py"} {
				if at := path.Join(site, module); p.files.at(at) != nil {
					inTheWay = at
				}
			}
		}
		if inTheWay != "" && !own[inTheWay] {
			return usagef("remove it from the base first, or leave the wheel out",
				"the wheel of %s has /%s, but the base has /%s, which is not of an older %s", i.name, f.path, inTheWay, i.name)
		}
	}
	for top := range replaced {
		if e := p.files.at(path.Join(site, top)); e != nil && p.content.folders[path.Join(site, top)] {
			p.content.addWhiteout(path.Join(site, top), opaqueWhiteout)
		}
	}
	return nil
}

// isCommandOfDeepSpeed reports whether a command has a name that only DeepSpeed uses.
func isCommandOfDeepSpeed(name string) bool {
	return strings.HasPrefix(name, "ds") || strings.HasPrefix(name, "deepspeed")
}
