package wheel

import (
	"os"
	"path/filepath"
	"regexp"
)

// SignatureFile returns the path of a signature of the attestation next to a wheel; id tells the
// signer's key from others.
func SignatureFile(file, id string) string {
	return file + ProvenanceSuffix + "." + id + signatureSuffix
}

const signatureSuffix = ".sig"

// SignatureFiles returns the signatures of the attestation next to a wheel, in the order of their names.
func SignatureFiles(file string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, e := range entries {
		if of, ok := SignedName(e.Name()); ok && of == filepath.Base(file) {
			all = append(all, filepath.Join(filepath.Dir(file), e.Name()))
		}
	}
	return all, nil
}

// SignedName returns the name of the wheel that the file of a signature belongs to; false if the
// name is not a signature's.
func SignedName(name string) (string, bool) {
	m := signatureForm.FindStringSubmatch(name)
	if m == nil {
		return "", false
	}
	return m[1], true
}

var signatureForm = regexp.MustCompile(`^(.+\.whl)` + regexp.QuoteMeta(ProvenanceSuffix) + `\.[0-9a-f]{1,64}\.sig$`)
