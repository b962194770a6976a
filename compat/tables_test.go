package compat

import (
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/wheel"
)

func TestOrigins(t *testing.T) {
	tt := tables(t)
	for _, name := range []string{"deepspeed", "torch", "cuda", "ops", "gpus", "drivers", "bases", "toolchains"} {
		if o := tt.Origins[name]; o.Source == "" || len(o.Date) != len("2026-11-21") {
			t.Errorf("%s: source %q, date %q", name, o.Source, o.Date)
		}
	}
}

// newestFirst checks that versions fall and that none occurs twice.
func newestFirst(t *testing.T, what string, versions []string) {
	t.Helper()
	for i := 1; i < len(versions); i++ {
		if compareVersions(versions[i-1], versions[i]) <= 0 {
			t.Errorf("%s: %s stands before %s", what, versions[i-1], versions[i])
		}
	}
}

func TestReleases(t *testing.T) {
	tt := tables(t)
	var versions []string
	for _, d := range tt.DeepSpeeds {
		versions = append(versions, d.Version)
		if len(d.SHA256) != 64 {
			t.Errorf("DeepSpeed %s: sha256 %q", d.Version, d.SHA256)
		}
	}
	newestFirst(t, "deepspeed", versions)
	newestFirst(t, "torch", torchVersions(tt.Torches))
	versions = nil
	for _, c := range tt.CUDAs {
		versions = append(versions, c.Version)
		if !slices.IsSortedFunc(c.Archs, func(a, b string) int { return compareVersions(a, b) }) || c.NewestGCC == "" || c.Driver == "" {
			t.Errorf("CUDA %s: %+v", c.Version, c)
		}
	}
	newestFirst(t, "cuda", versions)
}

func TestTorches(t *testing.T) {
	tt := tables(t)
	for _, torch := range tt.Torches {
		i := slices.IndexFunc(tt.CUDAs, func(c CUDA) bool { return c.Version == torch.CUDA })
		if i < 0 {
			t.Errorf("torch %s: CUDA %s is not in the tables", torch.Version, torch.CUDA)
			continue
		}
		for _, a := range torch.Archs {
			if !slices.Contains(tt.CUDAs[i].Archs, a) {
				t.Errorf("torch %s has code for %s, which CUDA %s does not compile for", torch.Version, a, torch.CUDA)
			}
		}
		pinned := torch.Toolkit != ""
		if pinned != (wheel.Major(torch.CUDA) == "13") || pinned && !strings.HasPrefix(torch.Toolkit, torch.CUDA+".") {
			t.Errorf("torch %s: CUDA %s, toolkit %q", torch.Version, torch.CUDA, torch.Toolkit)
		}
		if len(torch.Pythons) == 0 || numberOf(torch.OldestGCC) == 0 {
			t.Errorf("torch %s: %+v", torch.Version, torch)
		}
	}
}

func TestGPUs(t *testing.T) {
	tt := tables(t)
	classes := []string{"data center", "workstation", "GeForce", "Jetson"}
	seen := map[string]GPU{}
	for i, g := range tt.GPUs {
		if i > 0 {
			before := tt.GPUs[i-1]
			if x, y := slices.Index(classes, before.Class), slices.Index(classes, g.Class); x > y || x == y && olderMinor(before.Arch, g.Arch) {
				t.Errorf("%s (%s, %s) stands after %s (%s, %s)", g.Name, g.Class, g.Arch, before.Name, before.Class, before.Arch)
			}
		}
		if !slices.Contains(classes, g.Class) || g.Class == "Jetson" && g.Machine != wheel.Arm {
			t.Errorf("%s: class %q, machine %q", g.Name, g.Class, g.Machine)
		}
		if !slices.ContainsFunc(tt.CUDAs, func(c CUDA) bool { return slices.Contains(c.Archs, g.Arch) }) {
			t.Errorf("%s: no CUDA compiles for %s", g.Name, g.Arch)
		}
		if other, twice := seen[g.Name]; twice {
			t.Errorf("%s and %s are one name", g.Name, other.Name)
		}
		seen[g.Name] = g
		if found := tt.GPUsNamed(g.Name); len(found) == 0 || found[0].Arch != g.Arch {
			t.Errorf("%s is found as %v", g.Name, found)
		}
	}
}

func TestGPUsNamed(t *testing.T) {
	tt := tables(t)
	for name, want := range map[string]string{
		"V100": "7.0", "v100": "7.0", "Tesla V100-PCIE-16GB": "7.0", "Tesla V100-SXM2-32GB": "7.0", "Tesla V100S-PCIE-32GB": "7.0",
		"NVIDIA A100-SXM4-80GB": "8.0", "NVIDIA A100 80GB PCIe": "8.0", "A100-PCIE-40GB": "8.0", "GRID A100-40C": "8.0", "NVIDIA A100-SXM4-40GB MIG 1g.5gb": "8.0",
		"NVIDIA H100 80GB HBM3": "9.0", "NVIDIA H100 NVL": "9.0", "NVIDIA H100 PCIe": "9.0", "NVIDIA H20-3e": "9.0", "NVIDIA H800": "9.0", "NVIDIA GH200 480GB": "9.0",
		"NVIDIA B200": "10.0", "NVIDIA GB200": "10.0", "GB200 NVL72": "10.0", "NVIDIA B300 SXM6 AC": "10.3", "NVIDIA GB300": "10.3",
		"NVIDIA GeForce RTX 4090 Laptop GPU": "8.9", "NVIDIA GeForce RTX 4090": "8.9", "RTX 4090": "8.9", "rtx4090": "8.9", "4090": "8.9", "RTX-4070-Ti-SUPER": "8.9", "RTX 4090 D": "8.9",
		"GeForce RTX 3070 Ti Laptop GPU": "8.6", "RTX3090Ti": "8.6", "RTX 2050": "8.6", "GeForce RTX 2080 SUPER with Max-Q Design": "7.5", "GTX 1660 Ti": "7.5", "GeForce GTX 1080 Ti": "6.1",
		"GTX 1060 6GB": "6.1", "NVIDIA GeForce RTX 5070 Ti": "12.0", "GeForce GTX TITAN X": "5.2", "NVIDIA TITAN X (Pascal)": "6.1", "TITAN Xp": "6.1", "TITAN V": "7.0", "NVIDIA TITAN RTX": "7.5",
		"Quadro RTX 6000": "7.5", "NVIDIA RTX 6000 Ada Generation": "8.9", "NVIDIA RTX PRO 6000 Blackwell Server Edition": "12.0", "RTX PRO 5000 Blackwell Generation Laptop GPU": "12.0",
		"NVIDIA RTX A6000": "8.6", "RTX A6000-48Q": "8.6", "Quadro P4000": "6.1", "P4000": "6.1", "NVIDIA T1000 8GB": "7.5", "Quadro T2000": "7.5", "Quadro GV100": "7.0", "RTX 4000 SFF Ada Generation": "8.9",
		"NVIDIA L40S": "8.9", "NVIDIA A10G": "8.6", "Tesla T4": "7.5", "Tesla P100-PCIE-16GB": "6.0", "Tesla K80": "3.7",
		"Orin (nvgpu)": "8.7", "Jetson Orin Nano": "8.7", "NVIDIA Thor": "11.0", "AGX Orin": "8.7", "NVIDIA Jetson AGX Orin Developer Kit": "8.7", "TX2": "6.2", "Jetson AGX Xavier": "7.2", "Jetson TX2": "6.2", "NVIDIA GB10": "12.1",
		"NVIDIA TITAN Xp COLLECTORS EDITION": "6.1", "DGX Station A100": "8.0", "4x A100": "8.0", "A100 x8": "8.0", "8xH100": "9.0", "A100*8": "8.0", "Jetson Orin Nano Super": "8.7",
		"": "", "NVIDIA": "", "RTX": "", "MI300X": "", "RTX 9090": "", "100": "",
	} {
		found := tt.GPUsNamed(name)
		got := ""
		if len(found) > 0 {
			got = found[0].Arch
		}
		if got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]string{"V10O": "V100", "RTX 409O": "RTX 4090", "AGX Oren": "Jetson AGX Orin", "foo": "", "MI300X": "", "nonsense": "", "8.0": "", "80": "", "A100 PG509-200": "A100", "GTX 680": "", "A101": ""} {
		if got := strings.Join(tt.names().nearest(name), ","); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("nearest to %s: %s, want %q", name, got, want)
		}
	}
	for name, want := range map[string]string{"A10O": "NVIDIA A100", "A1OO": "NVIDIA A100", "RTX 4O90": "GeForce RTX 4090", "L4O": "NVIDIA L40"} {
		if got := tt.names().nearest(name); len(got) == 0 || !strings.HasSuffix(want, got[0]) {
			t.Errorf("nearest to %s: %q, want %s first", name, got, want)
		}
	}
	if both := tt.GPUsNamed("RTX 6000"); len(both) != 2 {
		t.Errorf("RTX 6000 is %v, it can be two", both)
	}
}

func TestShortGPU(t *testing.T) {
	for name, want := range map[string]string{
		"NVIDIA GeForce RTX 2080 Ti": "RTX 2080 Ti", "NVIDIA A100-SXM4-80GB": "A100", "NVIDIA A100 80GB PCIe": "A100", "Tesla V100-SXM2-32GB": "V100",
		"NVIDIA H100 80GB HBM3": "H100", "NVIDIA H100 NVL": "H100", "NVIDIA B300 SXM6 AC": "B300", "NVIDIA RTX 6000 Ada Generation": "RTX 6000 Ada",
		"Quadro RTX 6000": "Quadro RTX 6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX PRO 6000", "NVIDIA GeForce RTX 4090 Laptop GPU": "RTX 4090",
		"NVIDIA A100-SXM4-40GB MIG 1g.5gb": "A100", "GRID A100-40C": "A100", "NVIDIA GH200 480GB": "GH200", "GeForce GTX 1660 SUPER": "GTX 1660 SUPER",
		"Orin (nvgpu)": "Orin", "NVIDIA TITAN X (Pascal)": "TITAN X (Pascal)", "A100": "A100", "Graphics Device": "Graphics Device", "NVIDIA": "NVIDIA", "": "",
	} {
		if got := ShortGPU(name); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
}

func TestGroundOf(t *testing.T) {
	tt := tables(t)
	for ref, want := range map[string]string{
		"debian:bookworm-slim":                                 "bookworm 2.36 ",
		"docker.io/library/debian:12":                          "bookworm 2.36 ",
		"debian:12.11-slim@sha256:0123":                        "bookworm 2.36 ",
		"debian:trixie-20260101-slim":                          "trixie 2.41 ",
		"debian:bullseye":                                      "bullseye 2.31 ",
		"ubuntu:24.04":                                         "noble 2.39 ",
		"ubuntu:jammy-20260101":                                "jammy 2.35 ",
		"nvidia/cuda:12.8.1-devel-ubuntu22.04":                 "jammy 2.35 12.8",
		"docker.io/nvidia/cuda:12.8.1-cudnn-devel-ubuntu24.04": "noble 2.39 12.8",
		"nvcr.io/nvidia/cuda:11.8.0-cudnn8-devel-ubuntu20.04":  "focal 2.31 11.8",
		"nvidia/cuda:12.8.1-runtime-ubuntu22.04":               "jammy 2.35 ",
		"nvidia/cuda:13.0.2-base-ubuntu24.04@sha256:0123":      "noble 2.39 ",
		"nvidia/cuda:12.8.1-devel-rockylinux9":                 "",
		"debian:buster":                                        "",
		"debian:120":                                           "",
		"example.com/debian:bookworm":                          "",
		"alpine:3.20":                                          "",
		"":                                                     "",
	} {
		g, ok := tt.EnvironmentOfImage(ref)
		got := ""
		if ok {
			got = g.Suite + " " + g.Glibc + " " + g.CUDA
			if g.Ref != ref || (g.CUDA == "") != (g.CUDAHome == "") {
				t.Errorf("%s: %+v", ref, g)
			}
		}
		if got != want {
			t.Errorf("%s: %q, want %q", ref, got, want)
		}
	}
	for _, ref := range tt.Images {
		if g, ok := tt.EnvironmentOfImage(ref); !ok || g.CUDA == "" {
			t.Errorf("%s: %+v", ref, g)
		}
	}
	for _, b := range tt.Bases {
		if g, ok := tt.EnvironmentOfImage(b.Ref); !ok || g.Name != b.Name {
			t.Errorf("%s is recognised as %q", b.Ref, g.Name)
		}
	}
}
