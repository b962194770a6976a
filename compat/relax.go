package compat

import (
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/wheel"
)

// request is what a toolchain is asked for: a Spec, and the grounds that were
// given.
type request struct {
	spec    wheel.Spec
	grounds []Ground
}

// value is one value of a request that can be given up.
type value struct {
	add     func(*request)         // asks for it
	instead func(request) []change // other values, nearest first
}

// nearestFix gives up as little as it can of what was asked for, and says what
// to ask for instead; each change was tried. What says most of the machines that
// the wheel is for is kept longest: GPUs, ops, driver, Python, base, CUDA, torch,
// DeepSpeed.
func (t *Tables) nearestFix(w *want) string {
	asked := request{w.spec, given(w)}
	if !w.given {
		if a := t.find(w.spec, t.images, w.loose); a != nil {
			return "--base " + a.ground.Ref
		}
	}
	r := request{spec: wheel.Spec{CPU: asked.spec.CPU, Glibc: asked.spec.Glibc, Foreign: asked.spec.Foreign}}
	if asked.spec.Foreign {
		r.spec.DeepSpeed = asked.spec.DeepSpeed
	}
	var lost []value
	for _, v := range t.values(asked) {
		with := r
		v.add(&with)
		if t.works(with) {
			r = with
		} else {
			lost = append(lost, v)
		}
	}
	var words []string
	for _, v := range append(lost, t.lacking()...) {
		for _, c := range v.instead(r) {
			with := r
			if c.change(&with); t.works(with) {
				r = with
				words = append(words, c.text)
				break
			}
		}
	}
	return strings.ReplaceAll(strings.Join(words, " with "), " with without ", " without ")
}

// works reports whether there is a toolchain for a request. Without a GPU none
// is needed: which is missing is seen at the end.
func (t *Tables) works(r request) bool {
	return t.find(r.spec, r.grounds, len(r.spec.GPUs)+len(r.spec.Archs) == 0) != nil
}

// values are those of a request, what is kept longest first.
func (t *Tables) values(asked request) []value {
	spec := asked.spec
	var out []value
	for _, name := range spec.GPUs {
		out = append(out, value{
			func(r *request) { r.spec.GPUs = append(slices.Clone(r.spec.GPUs), name) },
			dropped("--gpu " + quoted(name)),
		})
	}
	for _, arch := range spec.Archs {
		out = append(out, value{func(r *request) { r.spec.Archs = addArch(r.spec.Archs, arch) }, dropped("--arch " + arch.String())})
	}
	for _, name := range spec.Ops {
		add := func(s *wheel.Spec) { s.Ops = append(slices.Clone(s.Ops), name) }
		out = append(out, value{func(r *request) { add(&r.spec) }, t.otherRelease(asked, name, add)})
	}
	version := func(flag string, of func(*wheel.Spec) *string, known []string) {
		if v := *of(&spec); v != "" {
			set := func(s *wheel.Spec, v string) { *of(s) = v }
			out = append(out, value{
				func(r *request) { set(&r.spec, v) },
				func(request) []change { return versionChanges(flag, v, known, set) },
			})
		}
	}
	version("--driver", func(s *wheel.Spec) *string { return &s.Driver }, t.drivers())
	version("--python", func(s *wheel.Spec) *string { return &s.Python }, t.pythons())
	if len(asked.grounds) > 0 {
		out = append(out, value{func(r *request) { r.grounds = asked.grounds }, t.otherGround(asked.grounds[0].Host)})
	}
	version("--cuda", func(s *wheel.Spec) *string { return &s.CUDA }, t.torchCUDAs())
	version("--torch", func(s *wheel.Spec) *string { return &s.Torch }, t.torchVersions())
	if !spec.Foreign {
		version("--deepspeed", func(s *wheel.Spec) *string { return &s.DeepSpeed }, t.releases())
	}
	return out
}

// dropped is the change to leave a value out that r no longer has.
func dropped(flag string) func(request) []change {
	return func(request) []change { return []change{{"without " + flag, func(*wheel.Spec) {}, nil}} }
}

// otherRelease is the newest DeepSpeed that has an op, where none was asked for;
// then the op is left out.
func (t *Tables) otherRelease(asked request, name string, add func(*wheel.Spec)) func(request) []change {
	return func(r request) []change {
		i := slices.IndexFunc(t.Ops, func(o Op) bool { return o.Name == name })
		var out []change
		for _, release := range t.releases() {
			if asked.spec.DeepSpeed == "" && !asked.spec.Foreign && i >= 0 && t.Ops[i].absent(release) == "" {
				out = append(out, change{"--deepspeed " + release, func(s *wheel.Spec) { add(s); s.DeepSpeed = release }, nil})
				break
			}
		}
		return append(out, dropped("--ops "+name)(r)...)
	}
}

// otherGround is the base that would be chosen without the one given.
func (t *Tables) otherGround(host bool) func(request) []change {
	return func(r request) []change {
		var out []change
		for _, grounds := range [][]Ground{nil, t.images} {
			a := t.find(r.spec, grounds, len(r.spec.GPUs)+len(r.spec.Archs) == 0)
			if a == nil {
				continue
			}
			text := "--base " + a.ground.Ref
			if host {
				text = "--builder dagger " + text
			}
			out = append(out, change{text, func(*wheel.Spec) {}, []Ground{a.ground}})
		}
		return out
	}
}

// lacking are values that a request may need and did not have: a GPU, and the
// Python of a ground of which none is known.
func (t *Tables) lacking() []value {
	return []value{
		{instead: func(r request) []change {
			w, _ := t.read(r.spec, r.grounds)
			if w.spec.Python != "" || !slices.ContainsFunc(w.grounds, func(g Ground) bool { return len(g.Pythons) == 0 }) {
				return nil
			}
			return versionChanges("--python", t.Torches[0].Pythons[0], t.Torches[0].Pythons, func(s *wheel.Spec, v string) { s.Python = v })
		}},
		{instead: func(r request) []change {
			w, _ := t.read(r.spec, r.grounds)
			if len(w.archs) > 0 || !w.device() {
				return nil
			}
			var out []change
			for _, g := range exampleGPUs() {
				out = append(out, change{"--gpu " + g[0], func(s *wheel.Spec) { s.GPUs = []string{g[0]} }, nil})
			}
			return out
		}},
	}
}

// exampleGPUs are well known ones, with their archs.
func exampleGPUs() [][2]string { return [][2]string{{"A100", "8.0"}, {"H100", "9.0"}, {"V100", "7.0"}} }

// drivers lists the oldest of each major of CUDA, newest first.
func (t *Tables) drivers() []string {
	var out []string
	for _, c := range t.CUDAs {
		out = append(out, c.Driver)
	}
	return slices.Compact(out)
}

// releases lists those of DeepSpeed, newest first.
func (t *Tables) releases() []string {
	var out []string
	for _, d := range t.DeepSpeeds {
		out = append(out, d.Version)
	}
	return out
}
