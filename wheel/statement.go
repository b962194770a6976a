package wheel

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
)

// ProvenanceFacts are the parts of a statement that a policy checks.
type ProvenanceFacts struct {
	Name     string    // of the only file that it is about
	SHA256   string    // of that file
	Version  string    // of DeepSpeed, without the local part
	Source   string    // where the sources came from, as a URI
	Finished time.Time // when the build ended
	Record   string    // SHA-256 of the wheel's RECORD, if stated
}

// ReadProvenance reads a statement, which must be about one file.
func ReadProvenance(text []byte) (ProvenanceFacts, error) {
	var s intoto.Statement
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, &s); err != nil {
		return ProvenanceFacts{}, err
	}
	p, err := readPredicate(&s)
	if err != nil {
		return ProvenanceFacts{}, err
	}
	if len(s.GetSubject()) != 1 {
		return ProvenanceFacts{}, fmt.Errorf("has %d subjects", len(s.GetSubject()))
	}
	subject := s.GetSubject()[0]
	f := ProvenanceFacts{Name: subject.GetName(), SHA256: subject.GetDigest()["sha256"]}
	finished := p.GetRunDetails().GetMetadata().GetFinishedOn()
	parts := strings.Split(f.Name, "-")
	if finished == nil || len(parts) < 2 {
		return f, errors.New("missing end time or version of the build")
	}
	f.Finished = finished.AsTime()
	f.Version, _, _ = strings.Cut(parts[1], "+")
	var sources []string
	for _, d := range p.GetBuildDefinition().GetResolvedDependencies() {
		if d.GetName() == sourceMaterial {
			sources = append(sources, d.GetUri())
		}
	}
	if len(sources) != 1 {
		return f, fmt.Errorf("has %d sources", len(sources))
	}
	f.Source = sources[0]
	for _, d := range p.GetRunDetails().GetByproducts() {
		if d.GetName() == recordProduct {
			f.Record = d.GetDigest()["sha256"]
		}
	}
	return f, nil
}

// RecordSum returns the SHA-256 of a wheel's RECORD.
func RecordSum(file string) (string, error) {
	text, err := ReadRecord(file)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// ReadRecord returns the text of a wheel's RECORD.
func ReadRecord(file string) ([]byte, error) {
	a, err := Open(file)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	text, err := a.ReadFile(a.inDistInfo("RECORD"), maxRecord)
	if errors.Is(err, errNoMember) {
		err = fmt.Errorf("%s has no RECORD", filepath.Base(file))
	}
	return text, err
}
