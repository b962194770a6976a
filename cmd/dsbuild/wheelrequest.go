package main

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/pipeline/planner"
	"github.com/dsbuild/dsbuild/wheel"
)

// addRequestFlags adds the flags that describe one wheel, as an entry of a matrix does.
func addRequestFlags(f *pflag.FlagSet, r *planner.Request) {
	addCommonRequestFlags(f, r)
	f.StringVar(&r.Torch, "torch", "", "torch `VERSION` to build for, X.Y or X.Y.Z (default: the newest that fits)")
	f.StringVar(&r.CUDA, "cuda", "", "CUDA `VERSION` that torch is built for, X or X.Y (default: torch's)")
	f.StringVar(&r.Python, "python", "", "Python `VERSION` to build for, X.Y (default: the base's)")
	f.StringVar(&r.Glibc, "glibc", "", "glibc `VERSION` of the oldest node, X.Y (2.28 or newer): a wheel that needs more is refused")
	f.StringVar(&r.Driver, "driver", "",
		"NVIDIA driver `VERSION` of the oldest node, such as 550.54: dsbuild chooses a torch for a CUDA that it runs (below 580: CUDA 12)")
	f.Lookup("cpu").DefValue, r.CPU = planner.DefaultCPU, planner.DefaultCPU
}

// addCommonRequestFlags adds those that also have a meaning where the nodes decide
// the rest.
func addCommonRequestFlags(f *pflag.FlagSet, r *planner.Request) {
	f.StringArrayVar(&r.Archs, "arch", nil, "compute capability `ARCH`, repeatable or joined: \"8.0;8.6+PTX\"")
	f.StringArrayVar(&r.GPUs, "gpu", nil, "GPU by `NAME`, repeatable or joined: A100, \"RTX 4090\"")
	f.StringSliceVar(&r.Ops, "ops", nil,
		"operators `OPS` to compile, joined by commas, or all that can be (default "+strings.Join(wheel.DefaultOps(), ",")+")")
	f.StringVar(&r.DeepSpeed, "deepspeed", "",
		"`SOURCE` of DeepSpeed: a release, latest, git+URL@REF, a folder or a source distribution (default: the newest release that "+
			"this dsbuild knows)")
	f.StringVar(&r.CPU, "cpu", "", "oldest CPU `LEVEL` that must run it: x86-64-v2, -v3 (AVX2), -v4 (AVX-512), or native: this machine's")
	f.StringVar(&r.Base, "base", "", "`BASE`: an image reference, a root file system tar or an OCI tar (default: chosen, a Debian or Ubuntu)")
	f.StringVar(&r.ABI, "abi", "torch",
		"ABI of torch that the operators use: `torch|stable` (torch: for one minor of torch and one Python; stable: for every "+
			"torch from 2.10 on and every Python from 3.10 on, not all operators, see dsbuild ops)")
	f.BoolVar(&r.KeepDebug, "keep-debug", false, "keep debug information in the extensions")
}
