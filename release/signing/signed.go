package signing

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/hiddeco/sshsig"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

// Limits on a wheel's sidecar files.
const (
	maxStatement  = 4 << 20
	maxSignature  = 64 << 10
	maxSignatures = 32
)

// Signed is a wheel's provenance attestation with its signatures. A node keeps it in this form.
type Signed struct {
	Name       string   `json:"name"` // the wheel's file name
	Statement  string   `json:"statement"`
	Signatures []string `json:"signatures"`       // armored
	Record     string   `json:"record,omitempty"` // the wheel's RECORD: the digests of its files
}

// ReadSigned reads the attestation and the signatures next to a wheel. A missing attestation is an empty
// Statement.
func ReadSigned(file string) (Signed, error) {
	s := Signed{Name: filepath.Base(file), Signatures: []string{}}
	text, err := readBounded(file+wheel.ProvenanceSuffix, maxStatement)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	s.Statement = string(text)
	files, err := wheel.SignatureFiles(file)
	if err != nil {
		return s, err
	}
	if len(files) > maxSignatures {
		return s, fmt.Errorf("%s has more than %d signatures", s.Name, maxSignatures)
	}
	for _, f := range files {
		text, err := readBounded(f, maxSignature)
		if err != nil {
			return s, err
		}
		s.Signatures = append(s.Signatures, string(text))
	}
	return s, nil
}

// readBounded reads a regular file of a limited size.
func readBounded(path string, most int64) ([]byte, error) {
	f, err := wheel.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s is larger than %d KiB", path, most>>10)
	}
	return text, err
}

// Key signs messages.
type Key interface {
	// Sign returns an armored SSH signature of a message in a namespace.
	Sign(message []byte, namespace string) ([]byte, error)
}

// RequireStatement returns an error for a wheel without an attestation.
func RequireStatement(file string) error {
	s, err := ReadSigned(file)
	if err == nil && s.Statement == "" {
		err = fault.New(fault.Usage, "copy it along with the wheel (dsbuild wheel writes it), or rebuild the wheel",
			"no provenance attestation next to %s (%s)", s.Name, s.Name+wheel.ProvenanceSuffix)
	}
	return err
}

// Sign signs the attestation next to a wheel and returns the path of the signature. The attestation must
// match the wheel. A second signature by the same key replaces the first. The build has removed the
// signatures of an earlier attestation.
func Sign(file string, key Key) (string, error) {
	if err := RequireStatement(file); err != nil {
		return "", err
	}
	s, err := ReadSigned(file)
	if err != nil {
		return "", err
	}
	sum, _, err := wheel.HashRegular(file)
	if err != nil {
		return "", err
	}
	if _, err := readFacts(s.Statement, s.Name, sum); err != nil {
		return "", fault.New(fault.Wheel, "copy the files of one build, or rebuild the wheel", "not signed: %w", err)
	}
	text, err := key.Sign([]byte(s.Statement), Namespace)
	if err != nil {
		return "", fmt.Errorf("signing %s: %w", s.Name, err)
	}
	signature, err := sshsig.Unarmor(text)
	if err != nil {
		return "", fmt.Errorf("signing %s: %w", s.Name, err)
	}
	id := sha256.Sum256(plainKey(signature.PublicKey))
	path := wheel.SignatureFile(file, hex.EncodeToString(id[:6]))
	return path, atomicfile.Write(path, bytes.NewReader(text), 0o644)
}
