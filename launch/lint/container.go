package lint

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// containerWithoutGPUs finds containers that start training and do not see the GPUs.
func containerWithoutGPUs(s *subject) (hits []hit) {
	for _, c := range s.Commands {
		if !startsTrainer(c) || c.Branch {
			continue
		}
		x := c.Starter("singularity", "apptainer")
		if x == nil {
			continue
		}
		if hits := s.noImage(x); hits != nil {
			return hits
		}
		if file, _ := pythonScript(c); !onCPU(c) && (file == "" || !isPreparation(path.Base(file))) {
			hits = append(hits, s.withoutDriver(x)...)
		}
	}
	return hits
}

// ofAMD matches names of AMD's software and of clusters with its GPUs.
var ofAMD = regexp.MustCompile(`(?i)rocm|\blumi|\bHIP_|\bROCR_|\bMI[23]\d\d|frontier`)

func (s *subject) withoutDriver(x *script.Command) []hit {
	text := x.Text()
	other := ofAMD.Match(s.Text) || strings.Contains(text, "--rocm") || strings.Contains(text, "--nv") || strings.Contains(text, "-nv")
	open := slices.ContainsFunc(x.Words, func(w script.Word) bool { // an unknown part may be --nv
		return slices.ContainsFunc(w.Refs(), func(r *script.Ref) bool { return r.NamesOptions() || r.Several })
	})
	if other || open || !s.job.wantsGPUs() && len(s.launches) == 0 ||
		s.assignsVariable("SINGULARITY_NV") || s.assignsVariable("APPTAINER_NV") {
		return nil
	}
	return []hit{{
		at: x.At, message: x.Name() + " without --nv",
		why: "the container has no driver of NVIDIA, so the program finds no GPU (\"Found no NVIDIA driver\")",
		fix: "use " + x.Name() + " exec --nv ... (--rocm for AMD)",
	}}
}

// noImage finds singularity exec without an image: its first word that is no option is the program.
func (s *subject) noImage(x *script.Command) []hit {
	valued := strings.Fields(`bind env env-file home overlay pwd workdir scratch network network-args security app add-caps drop-caps dns
		hostname fusemount mount apply-cgroups`)
	i := slices.IndexFunc(x.Words, func(w script.Word) bool { return w.Text() == "exec" })
	for i++; i > 0 && i < len(x.Words); i++ {
		w := x.Words[i]
		name, _, found := w.Cut('=')
		switch option := strings.TrimLeft(name.Text(), "-"); {
		case len(w.Refs()) > 0:
			return nil
		case w.HasPrefix("--") && !found && slices.Contains(valued, option), !w.HasPrefix("--") && w.HasPrefix("-") && len(w.Text()) == 2 &&
			strings.Contains("BHWSo", option):
			i++
		case w.HasPrefix("-"):
		case pythonName.MatchString(w.Text()) || slices.Contains([]string{"torchrun", "bash", "sh", "accelerate", "deepspeed"}, w.Text()):
			return []hit{{
				at: w.At, severity: Error, message: x.Name() + " exec has no image in front of " + w.Text(),
				why: "it takes the program for the file of the image, and does not find it",
				fix: "write the image in front of the program",
			}}
		default:
			return nil
		}
	}
	return nil
}
