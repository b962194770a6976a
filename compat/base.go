package compat

import (
	"regexp"
	"slices"
	"strings"
)

// EnvironmentOfImage returns the build environment of an image by its reference, with or
// without registry, tag variant and digest. It knows the distributions in the table of
// bases and NVIDIA's CUDA images on them. It reports false for any other image.
func (t *Tables) EnvironmentOfImage(ref string) (BuildHost, bool) {
	name, _, _ := strings.Cut(ref, "@")
	for _, prefix := range []string{"docker.io/", "index.docker.io/", "library/", "nvcr.io/"} {
		name = strings.TrimPrefix(name, prefix)
	}
	cuda := nvidiaImage.FindStringSubmatch(name)
	if cuda != nil {
		name = cuda[3] + ":" + cuda[4]
	}
	i := slices.IndexFunc(t.Bases, func(b Base) bool {
		match, err := regexp.MatchString(b.Match, name)
		return match && err == nil
	})
	if i < 0 {
		return BuildHost{}, false
	}
	g := t.Bases[i].BuildHost
	g.Ref = ref
	if cuda != nil {
		g.Name += " of NVIDIA's CUDA images"
	}
	switch {
	case cuda == nil:
	case cuda[2] == "devel":
		g.CUDA, g.CUDAHome = cuda[1], "/usr/local/cuda"
	default:
		g.Runtime = cuda[1]
	}
	return g, true
}

var nvidiaImage = regexp.MustCompile(`^nvidia/cuda:([0-9]+\.[0-9]+)(?:\.[0-9]+)?(?:-cudnn[0-9]*)?` +
	`-(devel|runtime|base)-(ubuntu)([0-9]+\.[0-9]+)$`)

// Offered adds the Pythons and compilers that the distribution of a base offers to
// install, if the tables know its release.
func (t *Tables) Offered(g BuildHost) BuildHost {
	i := slices.IndexFunc(t.Bases, func(b Base) bool { return g.Suite != "" && b.Suite == g.Suite })
	if i < 0 {
		return g
	}
	g.Pythons = appendMissing(g.Pythons, t.Bases[i].Pythons)
	g.GCCs = appendMissing(g.GCCs, t.Bases[i].GCCs)
	g.Cross = t.Bases[i].Cross
	return g
}

// appendMissing returns a with those values of b that it lacks, in order.
func appendMissing(a, b []string) []string {
	out := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
