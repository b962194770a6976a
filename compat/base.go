package compat

import (
	"regexp"
	"slices"
	"strings"
)

// GroundOf returns what is known of an image by its reference, with or
// without registry, tag variant and digest: the distributions in the table of
// bases, and NVIDIA's CUDA images on those. It reports false for any other.
func (t *Tables) GroundOf(ref string) (Ground, bool) {
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
		return Ground{}, false
	}
	g := t.Bases[i].Ground
	g.Ref = ref
	if cuda != nil {
		g.Name += " of NVIDIA's CUDA images"
	}
	if cuda != nil && cuda[2] == "devel" { // the others have no nvcc
		g.CUDA, g.CUDAHome = cuda[1], "/usr/local/cuda"
	}
	return g, true
}

var nvidiaImage = regexp.MustCompile(`^nvidia/cuda:([0-9]+\.[0-9]+)(?:\.[0-9]+)?(?:-cudnn[0-9]*)?-(devel|runtime|base)-(ubuntu)([0-9]+\.[0-9]+)$`)

// chosenGrounds are the bases that dsbuild chooses among by itself.
func (t *Tables) chosenGrounds() []Ground {
	var out []Ground
	for _, b := range t.Bases {
		if !b.NamedOnly {
			out = append(out, b.Ground)
		}
	}
	return out
}

// imageGrounds are those of the images that bring a CUDA toolkit.
func (t *Tables) imageGrounds() []Ground {
	var out []Ground
	for _, ref := range t.Images {
		if g, ok := t.GroundOf(ref); ok {
			out = append(out, g)
		}
	}
	return out
}
