package planner

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/dsbuild/dsbuild/wheel"
)

// RebuildRequest returns the request that leads to the same wheel again: everything that dsbuild chose
// is given. A wheel whose sources nobody else can have is an error.
func RebuildRequest(m wheel.Manifest) (Request, error) {
	r := Request{
		Archs: m.ArchsRequested, Ops: m.OpsRequested, CPU: m.CPU, Base: m.Base.Ref,
		KeepDebug: m.Env[wheel.KeepDebugVariable] != "",
	}
	if m.TorchABI.IsStable() {
		r.ABI = string(wheel.StableABI)
	} else {
		r.Torch, r.CUDA, r.Python = m.Torch, m.CUDA, m.Python
	}
	switch m.Source.Kind {
	case "release":
		r.DeepSpeed = m.Source.Ref
	case "git":
		url, _, _ := strings.Cut(strings.TrimPrefix(m.Source.Ref, "git+"), "#")
		scheme, rest, _ := strings.Cut(url, "://")
		host, path, _ := strings.Cut(rest, "/") // an @ in the host is a user's, not the revision's
		path, _, _ = strings.Cut(path, "@")
		r.DeepSpeed = "git+" + scheme + "://" + host + "/" + path + "@" + m.Source.Commit
	default:
		return r, fmt.Errorf("it was built from a %s, %s, which only its builder has", kindName(m.Source.Kind), m.Source.Ref)
	}
	if !strings.Contains(m.Base.Ref, "@sha256:") {
		return r, fmt.Errorf("it was built on %s, which is no image that others can get", cmp.Or(m.Base.Ref, "a machine"))
	}
	if m.PlanDigest == "" || len(m.OpsRequested) == 0 {
		return r, errors.New("its manifest does not say how it was built")
	}
	return r, nil
}

func kindName(kind string) string {
	if kind == "sdist" {
		return "source distribution"
	}
	return "folder"
}
