package daggerbuilder

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// tiny is a plan with every step of a real one, in which nothing is fetched or
// compiled: the image is the base with a few files, the strip step leaves a wheel
// that was made before. made and ran are shell lines of the image and of the
// source step.
func tiny(t *testing.T, name, tar, made, ran string) *pipeline.Plan {
	t.Helper()
	archs, err := wheel.ParseArchs([]string{"8.0"})
	if err != nil {
		t.Fatal(err)
	}
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	tc, err := tables.Resolve(wheel.Request{ABI: wheel.TorchMinor, Archs: archs, Ops: []string{"cpu_adam", "fused_adam"}})
	if err != nil {
		t.Fatal(err)
	}
	base := pipeline.Base{Ref: filepath.Base(tar), File: tar, Digest: "sha256:" + hex.EncodeToString(make([]byte, 32))}
	packages, _ := pipeline.LockedPackages(tc)
	p, err := pipeline.NewPlan([]pipeline.Part{{Toolchain: tc, Packages: packages}}, pipeline.Release(tc.DeepSpeed, tc.Source), base, false)
	if err != nil {
		t.Fatal(err)
	}
	file := wheeltest.Compiled(t, t.TempDir(), wheeltest.Options{Version: "0.19." + name})
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	site := p.Context["site.sh"]
	p.Dockerfile = dockerfiles.FromRootfs() + "FROM base AS runtime\nCOPY site.sh /opt/dsbuild/\n" +
		"RUN --mount=type=secret,id=site set -eu; . /opt/dsbuild/site.sh; " + made + "\nFROM runtime AS toolchain\nRUN true\n"
	p.Context, p.Args = map[string]string{"site.sh": site}, nil
	p.Scripts = map[string]string{
		"site.sh": site, "source.sh": "set -eu\n. \"$DSBUILD_TOOLS/site.sh\"\n" + ran + "\n", "true.sh": "true\n",
		"strip.sh": "base64 -d >\"$DSBUILD_OUT/" + filepath.Base(file) + "\" <<END\n" + base64.StdEncoding.EncodeToString(data) + "\nEND\n" +
			"cat >\"$DSBUILD_OUT/" + pipeline.BuildFile + "\" <<END\n" +
			`{"gcc":"12.2.0","python":"3.11","torch":"2.15.0","cuda":"13.2","packages":[]}` + "\nEND\n",
	}
	for i, s := range p.Steps {
		switch {
		case s.Image == pipeline.Local:
			continue
		case s.Name == pipeline.SourceStep:
			s.Script, s.Scripts = "source.sh", []string{"site.sh"}
		case s.Name == pipeline.StripStep:
			s.Script, s.Scripts = "strip.sh", nil
		default:
			s.Script, s.Scripts = "true.sh", nil
		}
		s.Env, s.Args = nil, nil
		p.Steps[i] = s
	}
	sum := sha256.Sum256([]byte(name + p.Dockerfile + p.Scripts["source.sh"]))
	p.Digest = hex.EncodeToString(sum[:])
	p.Manifest.PlanDigest = p.Digest
	return p
}
