package compat

import (
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/wheel"
)

// choice is a change of what was asked for with which it works.
type choice struct {
	text    string
	spec    wheel.Spec
	grounds []Ground
	pins    []pin // what was left open, to be said in words once it is found
}

// pin makes what a toolchain has into a value of the Spec, and says it.
type pin func(free *attempt, c *choice)

// loosener takes one thing that was asked for out, in one or several ways.
type loosener func(choice) []choice

// choices looks for the fewest things to change so that it works: one of those
// given, else two, and so on. Each is tried. Where giving up some GPUs or ops is
// not enough, nearly all are.
func (t *Tables) choices(w *want) []choice {
	common := t.looseners(w)
	near := slices.Concat(common, w.drops(dropArch, dropOps(w)))
	far := slices.Concat(common, w.drops(keepArch, dropAllOps))
	for n := range near {
		for _, looseners := range [][]loosener{near, far} {
			if n >= len(looseners) {
				continue
			}
			found := t.loosen(choice{spec: w.spec, grounds: given(w)}, looseners, n+1, w.loose)
			if len(found) > 0 {
				return t.best(found, w.loose)
			}
		}
	}
	return nil
}

// best are the first few choices, each once: those whose torch runs on the GPUs,
// if any does.
func (t *Tables) best(found []choice, loose bool) []choice {
	served := slices.DeleteFunc(slices.Clone(found), func(c choice) bool {
		return len(t.find(c.spec, c.grounds, loose).unserved()) > 0
	})
	if len(served) > 0 {
		found = served
	}
	var out []choice
	for _, c := range found {
		if len(out) < 4 && !slices.ContainsFunc(out, func(o choice) bool { return o.text == c.text }) {
			out = append(out, c)
		}
	}
	return out
}

// loosen applies n of the looseners, each way there is, and keeps what works.
func (t *Tables) loosen(c choice, looseners []loosener, n int, loose bool) []choice {
	if n == 0 {
		if settled, ok := t.settle(c, loose); ok {
			return []choice{settled}
		}
		return nil
	}
	var out []choice
	for i := range looseners[:len(looseners)-n+1] {
		for _, looser := range looseners[i](c) {
			out = append(out, t.loosen(looser, looseners[i+1:], n-1, loose)...)
		}
	}
	return out
}

// settle resolves a choice and says what was found. Each thing said narrows what
// is left for the next.
func (t *Tables) settle(c choice, loose bool) (choice, bool) {
	a := t.find(c.spec, c.grounds, loose)
	for _, p := range c.pins {
		if a == nil {
			break
		}
		p(a, &c)
		a = t.find(c.spec, c.grounds, loose)
	}
	return c, a != nil
}

// say adds a change in words: "--torch 2.8.0 with --python 3.9", "--torch 2.8.0
// without --gpu V100".
func (c *choice) say(text string) {
	switch {
	case c.text == "":
		c.text = text
	case strings.HasPrefix(text, "without "):
		c.text += " " + text
	default:
		c.text += " with " + text
	}
}

// looseners are those for what was given, nearest to what was asked first.
func (t *Tables) looseners(w *want) []loosener {
	s := w.spec
	var out []loosener
	for _, v := range versions() {
		if *v.field(&s) != "" {
			out = append(out, t.loosenValue(v, w.loose))
		}
	}
	if slices.ContainsFunc(w.grounds, func(g Ground) bool { return len(g.Pythons) == 0 }) && s.Python == "" {
		out = append(out, t.sayPython)
	}
	if len(w.archs) == 0 && !w.loose {
		out = append(out, addGPU)
	}
	out = append(out, t.loosenGround)
	if !s.Foreign {
		out = append(out, t.otherDeepSpeed(w))
	}
	return out
}

// drops are the looseners that give up GPUs and ops, of those there are.
func (w *want) drops(archs, ops loosener) []loosener {
	var out []loosener
	if len(w.spec.Archs)+len(w.spec.GPUs) > 1 {
		out = append(out, archs)
	}
	return append(out, ops)
}

// loosenValue takes a version out; what is then proposed is the nearest to it
// that serves the GPUs as well as what would be chosen freely.
func (t *Tables) loosenValue(v version, loose bool) loosener {
	return func(c choice) []choice {
		asked := *v.field(&c.spec)
		*v.field(&c.spec) = ""
		c.pins = append(slices.Clone(c.pins), func(free *attempt, c *choice) {
			for _, near := range nearestVersions(asked, append(v.known(t), v.of(free.tc))) {
				*v.field(&c.spec) = near
				if a := t.find(c.spec, c.grounds, loose); a != nil && len(a.unserved()) <= len(free.unserved()) {
					c.say(v.flag + " " + near)
					return
				}
			}
		})
		return []choice{c}
	}
}

// version is a value of the Spec that is one.
type version struct {
	flag  string
	field func(*wheel.Spec) *string
	of    func(Toolchain) string
	known func(*Tables) []string
}

func versions() []version {
	return []version{
		{"--torch", func(s *wheel.Spec) *string { return &s.Torch }, func(tc Toolchain) string { return tc.Torch }, (*Tables).torchVersions},
		{"--cuda", func(s *wheel.Spec) *string { return &s.CUDA }, func(tc Toolchain) string { return tc.CUDA }, (*Tables).torchCUDAs},
		{"--python", func(s *wheel.Spec) *string { return &s.Python }, func(tc Toolchain) string { return tc.Python }, (*Tables).pythons},
		{"--glibc", func(s *wheel.Spec) *string { return &s.Glibc }, func(tc Toolchain) string { return tc.Ground.Glibc }, (*Tables).glibcs},
	}
}

// loosenGround takes the bases of the tables in place of the caller's own, and
// images with a CUDA toolkit.
func (t *Tables) loosenGround(c choice) []choice {
	host := len(c.grounds) > 0 && c.grounds[0].Host
	sayBase := func(free *attempt, c *choice) {
		c.grounds = []Ground{free.ground}
		base := "--base " + free.ground.Ref
		if host {
			base = "--builder dagger " + base
		}
		c.say(base)
	}
	var out []choice
	if len(c.grounds) > 0 {
		known := c
		known.grounds = nil
		known.pins = append(slices.Clone(c.pins), sayBase)
		out = append(out, known)
	}
	images := c
	images.grounds = t.images
	images.pins = append(slices.Clone(c.pins), sayBase)
	return append(out, images)
}

// dropArch leaves one of the archs out.
func dropArch(c choice) []choice {
	var out []choice
	for i, name := range c.spec.GPUs {
		less := c
		less.spec.GPUs = slices.Delete(slices.Clone(c.spec.GPUs), i, i+1)
		less.say("without --gpu " + quoted(name))
		out = append(out, less)
	}
	for i, a := range c.spec.Archs {
		less := c
		less.spec.Archs = slices.Delete(slices.Clone(c.spec.Archs), i, i+1)
		less.say("without --arch " + a.String())
		out = append(out, less)
	}
	return out
}

// keepArch leaves all but one of the archs out.
func keepArch(c choice) []choice {
	var out []choice
	n := len(c.spec.GPUs)
	for keep := range n + len(c.spec.Archs) {
		one := c
		one.spec.GPUs, one.spec.Archs = nil, nil
		for i, name := range c.spec.GPUs {
			if i == keep {
				one.spec.GPUs = []string{name}
			} else {
				one.say("without --gpu " + quoted(name))
			}
		}
		for i, a := range c.spec.Archs {
			if n+i == keep {
				one.spec.Archs = []wheel.Arch{a}
			} else {
				one.say("without --arch " + a.String())
			}
		}
		out = append(out, one)
	}
	return out
}

// addGPU names an example, where none is given.
func addGPU(c choice) []choice {
	var out []choice
	for _, g := range exampleGPUs() {
		more := c
		more.spec.GPUs = []string{g[0]}
		more.say("--gpu " + g[0])
		out = append(out, more)
	}
	return out
}

// exampleGPUs are well known ones, with their archs.
func exampleGPUs() [][2]string { return [][2]string{{"A100", "8.0"}, {"H100", "9.0"}, {"V100", "7.0"}} }

// sayPython names one, for a ground of which none is known.
func (t *Tables) sayPython(c choice) []choice {
	var out []choice
	for _, p := range t.Torches[0].Pythons {
		more := c
		more.spec.Python = p
		more.say("--python " + p)
		out = append(out, more)
	}
	return out
}

// otherDeepSpeed takes the newest release that has the ops asked for by name.
func (t *Tables) otherDeepSpeed(w *want) loosener {
	return func(c choice) []choice {
		for _, d := range t.DeepSpeeds {
			lacks := func(o Op) bool { return o.absent(d.Version) != "" }
			if d.Version != w.deepspeed.Version && !slices.ContainsFunc(w.ops, lacks) {
				c.spec.DeepSpeed = d.Version
				c.say("--deepspeed " + d.Version)
				return []choice{c}
			}
		}
		return nil
	}
}

// dropOps leaves one of the ops out, or those that no toolchain builds for these
// archs, or all that have device code.
func dropOps(w *want) loosener {
	return func(c choice) []choice {
		var out []choice
		for _, list := range w.fewerOps() {
			if len(list) == 0 {
				out = append(out, dropAllOps(c)...)
				continue
			}
			less := c
			less.spec.Ops = list
			less.say("--ops " + strings.Join(list, ","))
			out = append(out, less)
		}
		return out
	}
}

// dropAllOps takes the default ones in place of those asked for.
func dropAllOps(c choice) []choice {
	if len(c.spec.Ops) == 0 {
		return nil
	}
	c.say("without --ops " + strings.Join(c.spec.Ops, ","))
	c.spec.Ops = nil
	return []choice{c}
}

// fewerOps are the lists that leave something out of --ops, those that leave
// out least first. Of the default ops only those without device code are any.
func (w *want) fewerOps() [][]string {
	var named, possible, plain []string
	for i, op := range w.ops {
		if w.byName[i] && !w.all && len(w.spec.Ops) > 0 {
			named = append(named, op.Name)
			if w.opRefused(op) == "" {
				possible = append(possible, op.Name)
			}
		}
		if !op.DeviceCode && (w.byName[i] || w.all) {
			plain = append(plain, op.Name)
		}
	}
	lists := without(named)
	if len(possible) > 0 && len(named)-len(possible) > 1 {
		lists = append(append(lists, possible), without(possible)...)
	}
	if len(plain) > 0 {
		lists = append(lists, plain)
	}
	return lists
}

// without lists what is left of a list without each one of it.
func without(list []string) [][]string {
	var out [][]string
	for i := range list {
		out = append(out, slices.Delete(slices.Clone(list), i, i+1))
	}
	return out
}
