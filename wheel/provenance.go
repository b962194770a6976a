package wheel

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// ProvenanceSuffix is added to a wheel's name for its provenance statement.
const ProvenanceSuffix = ".provenance.json"

const (
	predicateType = "https://slsa.dev/provenance/v1"
	buildType     = "https://github.com/dsbuild/dsbuild/blob/main/docs/wheels.md#build-type"
	builderID     = "https://github.com/dsbuild/dsbuild/builders/"
)

// Provenance returns the in-toto statement (v1, predicate SLSA provenance v1) of a finished
// wheel: its materials, its builder, and the start and end of its build. Package signing signs it.
func Provenance(m Manifest, b Build, started, finished time.Time) ([]byte, error) {
	external, err := structOf(map[string]any{
		"deepspeed": m.Source.Ref, "ops": m.OpsRequested, "archs": m.ArchsRequested, "cpu": m.CPU,
		"torch": m.Torch, "cuda": m.CUDA, "python": m.Python, "base": m.Base.Ref,
		"keep_debug": m.Env[KeepDebugVariable] != "",
	})
	if err != nil {
		return nil, err
	}
	parameters := map[string]any{"plan_digest": m.PlanDigest, "env": m.Env}
	if toolkits := map[string]string{}; len(m.CUDAs()) > 1 {
		for _, v := range m.Variants {
			if v.CUDA != "" {
				toolkits[v.Name] = v.Toolkit
			}
		}
		parameters["toolkits"] = toolkits
	}
	internal, err := structOf(parameters)
	if err != nil {
		return nil, err
	}
	var byproducts []*intoto.ResourceDescriptor
	if b.Record != "" {
		byproducts = append(byproducts, &intoto.ResourceDescriptor{Name: recordProduct, Digest: digests(b.Record)})
	}
	predicate := &slsa.Provenance{
		BuildDefinition: &slsa.BuildDefinition{
			BuildType: buildType, ExternalParameters: external, InternalParameters: internal,
			ResolvedDependencies: buildMaterials(m, b),
		},
		RunDetails: &slsa.RunDetails{
			Builder:    &slsa.Builder{Id: builderID + m.Builder, Version: map[string]string{"dsbuild": m.Dsbuild}},
			Byproducts: byproducts,
			Metadata: &slsa.BuildMetadata{
				StartedOn:  timestamppb.New(started.Truncate(time.Second)),
				FinishedOn: timestamppb.New(finished.Truncate(time.Second)),
			},
		},
	}
	return statement(m, predicate)
}

func statement(m Manifest, predicate *slsa.Provenance) ([]byte, error) {
	if err := predicate.Validate(); err != nil {
		return nil, fmt.Errorf("provenance: %w", err)
	}
	text, err := protojson.Marshal(predicate)
	if err != nil {
		return nil, err
	}
	inner := &structpb.Struct{}
	if err := protojson.Unmarshal(text, inner); err != nil {
		return nil, err
	}
	s := &intoto.Statement{
		Type: intoto.StatementTypeUri, PredicateType: predicateType, Predicate: inner,
		Subject: []*intoto.ResourceDescriptor{{Name: m.Name, Digest: map[string]string{"sha256": m.SHA256}}},
	}
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("provenance: %w", err)
	}
	if text, err = protojson.Marshal(s); err != nil {
		return nil, err
	}
	// protojson randomizes its whitespace; json.Indent makes it reproducible.
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", " "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// Names of the materials a verifier looks for.
const (
	sourceMaterial = "source"
	baseMaterial   = "base"

	archiveMaterial = "archive" // of every package: the wheel or .deb that was installed
)

// recordProduct is the name of the wheel's RECORD among the byproducts: with its digest, installed
// files can be compared with a statement when the wheel itself is gone.
const recordProduct = "RECORD"

// buildMaterials lists the sources, the base, and the software installed in the build
// environment. A package has the digest of the file list its installer recorded and, if it is known,
// that of the file that was installed.
func buildMaterials(m Manifest, b Build) []*intoto.ResourceDescriptor {
	source := m.Source.Kind + ":" + url.PathEscape(m.Source.Ref)
	switch m.Source.Kind {
	case "release": // only release sources may be identified as the package's
		source = pypiURL("deepspeed", m.Source.Ref)
	case "git":
		source = m.Source.CommitURL()
	}
	base := "file:" + m.Base.Ref // the name of a tar file
	if strings.Contains(m.Base.Ref, "@sha256:") {
		base = "oci://" + m.Base.Ref
	}
	all := []*intoto.ResourceDescriptor{
		{Name: sourceMaterial, Uri: source, Digest: digests(m.Source.SHA256)},
		{Name: baseMaterial, Uri: base, Digest: digests(strings.TrimPrefix(m.Base.Digest, "sha256:"))},
	}
	for _, p := range b.Packages {
		all = append(all, &intoto.ResourceDescriptor{Name: p.File, Uri: p.PURL, Digest: digests(p.SHA256)})
		if p.Archive != "" {
			all = append(all, &intoto.ResourceDescriptor{Name: archiveMaterial, Uri: p.PURL, Digest: digests(p.Archive)})
		}
	}
	return all
}

func digests(sha256 string) map[string]string {
	if sha256 == "" {
		return nil
	}
	return map[string]string{"sha256": sha256}
}

// structOf converts through JSON, because structpb does not accept []string.
func structOf(v map[string]any) (*structpb.Struct, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	s := &structpb.Struct{}
	return s, protojson.Unmarshal(text, s)
}

// checkProvenance compares a statement with its wheel; sum is the wheel's SHA-256.
func checkProvenance(text []byte, name, sum string, m *Manifest) []string {
	var s intoto.Statement
	// The specification asks readers to ignore unknown fields.
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, &s); err != nil {
		return []string{fmt.Sprintf("cannot be read: %v", err)}
	}
	predicate, err := readPredicate(&s)
	if err != nil {
		return []string{err.Error()}
	}
	var damage []string
	if len(s.GetSubject()) != 1 || s.GetSubject()[0].GetName() != name {
		damage = append(damage, "it is about another file")
	} else if got := s.GetSubject()[0].GetDigest()["sha256"]; got != sum {
		damage = append(damage, fmt.Sprintf("for sha256 %s, but the file has %s", got, sum))
	}
	if m == nil {
		return damage
	}
	said := map[string]string{}
	for _, d := range predicate.GetBuildDefinition().GetResolvedDependencies() {
		said[d.GetName()] = d.GetDigest()["sha256"]
	}
	if got := said[sourceMaterial]; got != m.Source.SHA256 {
		damage = append(damage, fmt.Sprintf("the sources have sha256 %s, but %s in the manifest",
			cmp.Or(got, "nothing"), m.Source.SHA256))
	}
	if got, want := said[baseMaterial], strings.TrimPrefix(m.Base.Digest, "sha256:"); got != want {
		damage = append(damage, fmt.Sprintf("the base has sha256 %s, but %s in the manifest",
			cmp.Or(got, "nothing"), want))
	}
	return damage
}

func readPredicate(s *intoto.Statement) (*slsa.Provenance, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if s.GetPredicateType() != predicateType {
		return nil, errors.New("the predicate is " + s.GetPredicateType() + ", not " + predicateType)
	}
	text, err := protojson.Marshal(s.GetPredicate())
	if err != nil {
		return nil, err
	}
	p := &slsa.Provenance{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, p); err != nil {
		return nil, err
	}
	return p, p.Validate()
}
