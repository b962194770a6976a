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
// given, else two, and so on. Each is tried.
func (t *Tables) choices(w *want) []choice {
	looseners := t.looseners(w)
	for n := range looseners {
		found := t.loosen(choice{spec: w.spec, grounds: given(w)}, looseners, n+1, w.loose)
		served := slices.DeleteFunc(slices.Clone(found), func(c choice) bool {
			a := t.find(c.spec, c.grounds, w.loose)
			return len(a.unserved()) > 0
		})
		if len(served) > 0 {
			found = served
		}
		if len(found) > 0 {
			return found[:min(len(found), 4)]
		}
	}
	return nil
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

// settle resolves a choice and says what was found; said like that it has to
// work once more.
func (t *Tables) settle(c choice, loose bool) (choice, bool) {
	a := t.find(c.spec, c.grounds, loose)
	if a == nil {
		return c, false
	}
	for _, p := range c.pins {
		p(a, &c)
	}
	return c, t.find(c.spec, c.grounds, loose) != nil
}

func (c *choice) say(text string) {
	c.text = strings.TrimPrefix(c.text+" with "+text, " with ")
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
	if len(s.Archs)+len(s.GPUs) > 1 {
		out = append(out, dropArch)
	}
	if !s.Foreign {
		out = append(out, t.otherDeepSpeed(w))
	}
	return append(out, dropOps(w))
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
		if host {
			c.say("--builder dagger")
		}
		c.grounds = []Ground{free.ground}
		c.say("--base " + free.ground.Ref)
	}
	var out []choice
	if len(c.grounds) > 0 {
		known := c
		known.grounds = nil
		known.pins = append(slices.Clone(c.pins), sayBase)
		out = append(out, known)
	}
	images := c
	images.grounds = t.imageGrounds()
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

// addGPU names an example, where none is given.
func addGPU(c choice) []choice {
	var out []choice
	for _, name := range []string{"A100", "H100", "V100"} {
		more := c
		more.spec.GPUs = []string{name}
		more.say("--gpu " + name)
		out = append(out, more)
	}
	return out
}

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

// dropOps leaves one of the ops out, or else all that have device code.
func dropOps(w *want) loosener {
	return func(c choice) []choice {
		var lists [][]string
		var plain []string
		for i, op := range w.ops {
			rest := slices.Delete(opNames(w.ops), i, i+1)
			if len(w.spec.Ops) > 0 && !w.all {
				lists = append(lists, rest)
			}
			if !op.DeviceCode {
				plain = append(plain, op.Name)
			}
		}
		var out []choice
		for _, list := range append(lists, plain) {
			if len(list) == 0 {
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

func opNames(ops []Op) []string { return Toolchain{Ops: ops}.OpNames(false) }
