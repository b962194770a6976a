package planner

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/hostbuilder"
	"github.com/dsbuild/dsbuild/wheel"
)

// RebuildRequest returns the source and the request that reproduce a wheel: it sets everything that dsbuild chose. A
// wheel with private sources is an error. The request's base is a public image. If the wheel was built on another
// base it is "", and CheckRebuild reports whether the plan has the same base.
func RebuildRequest(m wheel.Manifest) (source string, r wheel.Request, err error) {
	switch m.Source.Kind {
	case "release":
		source = m.Source.Ref
	case "git":
		source = m.Source.CommitURL()
	default:
		kind := "directory"
		if m.Source.Kind == "sdist" {
			kind = "source distribution"
		}
		return "", r, fmt.Errorf("the wheel was built from a local %s, %s, which is not available here", kind, m.Source.Ref)
	}
	if m.PlanDigest == "" || len(m.OpsRequested) == 0 {
		return "", r, errors.New("the manifest does not record how the wheel was built")
	}
	said := map[string]string{
		"arch": strings.Join(m.ArchsRequested, ";"), "ops": strings.Join(m.OpsRequested, ","), "cpu": m.CPU, "cuda": m.CUDA,
		"abi": string(wheel.StableABI), "keep-debug": strconv.FormatBool(m.Env[wheel.KeepDebugVariable] != ""),
	}
	if !m.TorchABI.IsStable() {
		said["abi"], said["torch"], said["python"] = string(wheel.TorchMinor), m.Torch, m.Python
	}
	if m.TorchABI.IsStable() && m.HasAllOps() { // its version shows it, although the ops are listed
		said["ops"] += "," + compat.ProvenOps
	}
	if levels := m.CPUs(); len(levels) > 1 {
		said["cpu"], said["machine"] = "", levels[0].Machine()
	}
	if strings.Contains(m.Base.Ref, "@sha256:") {
		said["base"] = m.Base.Ref
	}
	for _, key := range Keys() {
		if text := said[key]; text != "" {
			if err := Set(&r, key, text); err != nil {
				return "", r, err
			}
		}
	}
	return source, r, nil
}

// CheckRebuild returns an error if a plan does not build on the base of a manifest.
func CheckRebuild(plan *pipeline.Plan, m wheel.Manifest) error {
	if m.Base.Digest != "" && plan.Base.Digest == m.Base.Digest {
		return nil
	}
	err := fmt.Errorf("the wheel was built on %s (%s), but would be rebuilt on %s (%s)",
		cmp.Or(m.Base.Ref, "a machine"), cmp.Or(m.Base.Digest, "no digest"),
		plan.Base.Ref, cmp.Or(plan.Base.Digest, "no digest"))
	if m.Base.Ref == hostbuilder.BaseRef {
		return fault.WithHint(err, "rebuild a wheel of the host builder on the same machine "+
			"with --builder host and unchanged compilers and Pythons")
	}
	return fault.WithHint(err, "pass the same root file system tar with --base")
}
