package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/pipeline/planner"
	"github.com/dsbuild/dsbuild/wheel"
)

// requestFlags are the flags that describe a wheel.
type requestFlags planner.Request

// add declares the flags for one wheel.
func (f *requestFlags) add(cmd *cobra.Command) {
	f.addForNodes(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.Torch, "torch", "", "torch `VERSION` to build for, X.Y or X.Y.Z (default: the newest that fits)")
	flags.StringVar(&f.CUDA, "cuda", "", "CUDA `VERSION` that torch is built for, X or X.Y (default: torch's)")
	flags.StringVar(&f.Python, "python", "", "Python `VERSION` to build for, X.Y (default: the base's)")
	flags.StringVar(&f.Glibc, "glibc", "",
		"glibc `VERSION` of the oldest node, X.Y (2.28 or newer): a wheel that needs more is refused")
	flags.StringVar(&f.Driver, "driver", "",
		"NVIDIA driver `VERSION` of the oldest node, such as 550.54: "+
			"dsbuild chooses a torch for a CUDA that it runs (below 580: CUDA 12)")
	flags.StringVar(&f.Machine, "machine", "",
		"`MACHINE` to build for: x86_64 or aarch64 (default: that of the GPUs, else that of the builder)")
	flags.Lookup("cpu").Usage += " (default: x86-64-v3, or armv8-a for aarch64)"
}

// addForNodes declares those that also have a meaning where nodes decide the rest.
func (f *requestFlags) addForNodes(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&f.Archs, "arch", nil, "compute capability `ARCH`, repeatable or joined: \"8.0;8.6+PTX\"")
	flags.StringArrayVar(&f.GPUs, "gpu", nil,
		"GPU by `NAME`, repeatable or joined: A100, \"RTX 4090\" (default: all, code for every GPU)")
	flags.StringSliceVar(&f.Ops, "ops", nil,
		"operators `OPS` to compile, joined by commas; all: every op that can be compiled; "+
			"proven: every op of state ran or launched, see dsbuild ops (default "+
			strings.Join(wheel.DefaultOps(), ",")+")")
	flags.StringVar(&f.DeepSpeed, "deepspeed", "",
		"`SOURCE` of DeepSpeed: a release, latest, git+URL@REF, a folder or a source distribution "+
			"(default: the newest release that this dsbuild knows)")
	flags.StringVar(&f.CPU, "cpu", "", "oldest CPU `LEVEL` that must run it: "+
		"x86-64-v2, -v3 (AVX2), -v4 (AVX-512), armv8-a (aarch64), or native: this machine's")
	flags.StringVar(&f.Base, "base", "",
		"`BASE`: an image reference, a root file system tar or an OCI tar (default: chosen, a Debian or Ubuntu)")
	flags.StringVar(&f.ABI, "abi", "auto",
		"ABI of torch that the operators use: `auto|stable|torch` "+
			"(stable: for every torch from 2.10 on and every Python from 3.10 on; "+
			"torch: for one minor of torch and one Python; auto: stable if every operator is proven with it, see dsbuild ops)")
	flags.BoolVar(&f.KeepDebug, "keep-debug", false, "keep debug information in the extensions")
}
