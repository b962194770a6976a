package planner

import (
	"errors"
	"runtime"

	"golang.org/x/sys/cpu"

	"github.com/dsbuild/dsbuild/wheel"
)

// hostCPU is the highest micro-architecture level of the machine dsbuild runs on.
func hostCPU() (wheel.CPULevel, error) {
	if runtime.GOARCH == "arm64" {
		return wheel.CPUArm, nil
	}
	x := cpu.X86
	v2 := x.HasCX16 && x.HasPOPCNT && x.HasSSE3 && x.HasSSE41 && x.HasSSE42 && x.HasSSSE3
	v3 := v2 && x.HasAVX && x.HasAVX2 && x.HasBMI1 && x.HasBMI2 && x.HasFMA && x.HasOSXSAVE
	v4 := v3 && x.HasAVX512F && x.HasAVX512BW && x.HasAVX512CD && x.HasAVX512DQ && x.HasAVX512VL
	switch {
	case v4:
		return wheel.CPUv4, nil
	case v3:
		return wheel.CPUv3, nil
	case v2:
		return wheel.CPUv2, nil
	}
	return "", errors.New("this machine's CPU is below x86-64-v2, the lowest level of wheels")
}
